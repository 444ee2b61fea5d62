"""Which layers of a model are cut over the model axis, and how their outputs meet again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, final

from torch import nn

from dream._errors import ConfigurationError, Unsupported
from dream._log import logger
from dream.adapters.pytorch.parallel.tensor.blocks import LayerBlock, blocks_of

Cut = Literal["column", "row"]
After = Literal["whole", "local", "shard"]
"""What a column-cut layer gives: its whole output; this rank's own columns, as an ordinary tensor;
or a `LocalShard`."""
_WAYS = ("column", "row", "replicate")
_CUT = (nn.Linear, nn.Embedding)
_NAMED = 8  # names in a line
_ENCODERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


@final
@dataclass(slots=True)
class TensorPlan:
    """How a model's layers are cut over the ranks.

    cuts: layers by name. after: of each column-cut one. local: row-cut layers that are given
    their own columns. modes: modules in which shards are computed with.
    """

    cuts: dict[str, Cut] = field(default_factory=dict)
    after: dict[str, After] = field(default_factory=dict)
    local: set[str] = field(default_factory=set)
    modes: set[str] = field(default_factory=set)


def plan_of(module: nn.Module, asked: object, parts: int) -> TensorPlan:
    """Return the plan for `parts` ranks; asked: "auto", or a mapping from patterns to ways."""
    found = {name: _blocks(part) for name, part in module.named_modules()}
    if isinstance(asked, Mapping):
        return _by_hand(module, cuts_of(module, asked), found, parts)
    return _automatic(module, found, parts)


def _automatic(
    module: nn.Module, found: Mapping[str, list[LayerBlock] | None], parts: int
) -> TensorPlan:
    plan, tied = TensorPlan(), _tied(module)
    for owner, blocks in found.items():
        for block in blocks or ():
            names = [_join(owner, name) for name in (*block.firsts, block.last)]
            if set(names) & {*plan.cuts, *tied} or not _divides(module, names, block, parts):
                continue
            _add(plan, owner, block)
    for name, part in module.named_modules():
        if _is_plain_embedding(part) and name not in tied and size_of(part, "row") % parts == 0:
            plan.cuts[name] = "row"
    if not plan.cuts:
        logger.info(
            "%s stays whole on every rank of the model axis: no MLP or attention block was found "
            "in it. Name its layers in plan=, or use 'sharded'",
            type(module).__name__,
        )
    else:
        _log_whole_layers(module)
    return plan


def _log_whole_layers(module: nn.Module) -> None:
    """Name the layers of a kind that is never cut: right, but every rank holds all of them."""
    held = [
        f"{name or 'the model itself'} ({type(part).__name__})"
        for name, part in module.named_modules()
        if not isinstance(part, (nn.Linear, nn.Embedding)) and _has_matrix(part)
    ]
    if held:
        packed = any(isinstance(part, nn.MultiheadAttention) for part in module.modules())
        logger.info(
            "split='tensor' cuts Linear and Embedding layers; whole on every rank of the model "
            "axis stay %s%s. To cut them too, use 'sharded'",
            ", ".join([*held[:_NAMED], "..."] if len(held) > _NAMED else held),
            ", whose query, key and value are packed in one parameter: attention written with a "
            "Linear for each is cut by heads" if packed else "",
        )  # fmt: skip


def _has_matrix(part: nn.Module) -> bool:
    return any(parameter.dim() > 1 for parameter in part.parameters(recurse=False))


def _by_hand(
    module: nn.Module,
    cuts: dict[str, Cut],
    found: Mapping[str, list[LayerBlock] | None],
    parts: int,
) -> TensorPlan:
    plan, tied = TensorPlan(), _tied(module)
    for name, cut in cuts.items():
        if name in tied:
            raise Unsupported(
                "A layer that shares its parameters with another one cannot be cut. Received: "
                f"{name} in plan=. Leave both out of the plan, or use 'sharded'."
            )
        check_divides(name, module.get_submodule(name), cut, parts)
    for owner, blocks in found.items():
        for block in blocks or ():
            firsts = [_join(owner, name) for name in block.firsts]
            if all(cuts.get(name) == "column" for name in firsts):
                _check_heads(firsts, block, parts)
                if cuts.get(_join(owner, block.last)) == "row":
                    _add(plan, owner, block)
    for name, cut in cuts.items():
        if name not in plan.cuts:
            plan.cuts[name] = cut
            _add_alone(plan, module, name, found)
    return plan


def _add(plan: TensorPlan, owner: str, block: LayerBlock) -> None:
    """Plan a block whose shards need not meet before its last layer."""
    last = _join(owner, block.last)
    plan.cuts[last] = "row"
    nested = any("." in name for name in block.firsts)  # such a part may be called by itself
    local = block.local and not nested
    if local:
        plan.local.add(last)
    else:
        plan.modes.add(owner)
    for name in block.firsts:
        plan.cuts[_join(owner, name)] = "column"
        plan.after[_join(owner, name)] = "local" if local else "shard"


def _add_alone(
    plan: TensorPlan, module: nn.Module, name: str, found: Mapping[str, list[LayerBlock] | None]
) -> None:
    """Plan a column-cut layer by itself: its shards meet at once, unless it cannot be seen what
    becomes of them, and they may go on to a row-cut layer."""
    if plan.cuts[name] == "row":
        return
    owner = name.rpartition(".")[0]
    unseen = found[owner] is None and isinstance(module.get_submodule(name), nn.Linear)
    plan.after[name] = "shard" if unseen else "whole"
    if unseen:
        plan.modes.add(owner)


def _is_plain_embedding(part: nn.Module) -> bool:
    return type(part) is nn.Embedding and part.max_norm is None and not part.sparse


def _blocks(module: nn.Module) -> list[LayerBlock] | None:
    if isinstance(module, _ENCODERS):
        return [LayerBlock(("linear1",), "linear2", None, local=False)]
    if not any(True for _ in module.children()) or type(module).forward is nn.Module.forward:
        return []
    return blocks_of(module)


def _divides(module: nn.Module, names: list[str], block: LayerBlock, parts: int) -> bool:
    *firsts, last = names
    sizes = [size_of(module.get_submodule(name), "column") for name in firsts]
    sizes.append(size_of(module.get_submodule(last), "row"))
    if block.heads is not None:
        sizes.append(block.heads)
    return all(size % parts == 0 for size in sizes)


def _check_heads(firsts: list[str], block: LayerBlock, parts: int) -> None:
    if block.heads is not None and block.heads % parts:
        raise Unsupported(
            "Attention is cut by heads. Received: "
            f"{', '.join(firsts)} with {block.heads} heads over {parts} ranks of the model axis. "
            "Choose a number of heads that they divide, say 'replicate' for these layers, or use "
            "'sharded'."
        )


def _tied(module: nn.Module) -> set[str]:
    """Return the layers that hold a parameter of another one's too."""
    holders: dict[int, set[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        holders.setdefault(id(parameter), set()).add(name.rpartition(".")[0])
    return {name for names in holders.values() if len(names) > 1 for name in names}


def _join(owner: str, name: str) -> str:
    return f"{owner}.{name}" if owner else name


def cuts_of(module: nn.Module, plan: Mapping[object, object]) -> dict[str, Cut]:
    """Return how each layer that the plan names is cut, by name. The first pattern that fits
    counts."""
    named = {name: part for name, part in module.named_modules() if name}
    cuts: dict[str, Cut] = {}
    settled: set[str] = set()
    for pattern, way in plan.items():
        _check_way(pattern, way)
        fitting = [name for name in named if fnmatchcase(name, str(pattern))]
        if not fitting:
            raise ConfigurationError(
                f"No layer matches this name. Received: plan={{{pattern!r}: {way!r}}} for "
                f"{type(module).__name__}. Its layers: {', '.join(_cuttable(named))}."
            )
        for name in fitting:
            if name in settled:
                continue
            settled.add(name)
            if way == "replicate":
                continue
            _check_layer(name, named[name], str(way))
            _check_owner(name, module)
            cuts[name] = "column" if way == "column" else "row"
    return cuts


def check_divides(name: str, layer: nn.Module, cut: Cut, parts: int) -> None:
    """Refuse a layer that has no equal parts."""
    size = size_of(layer, cut)
    if size % parts:
        raise Unsupported(
            f"A layer is cut into equal parts. Received: {name}, {size} "
            f"{'columns' if cut == 'column' else 'rows'} over {parts} ranks of the model axis. "
            "Choose a size that they divide, say 'replicate' for it, or use 'sharded', which cuts "
            "anything."
        )


def size_of(layer: nn.Module, cut: Cut) -> int:
    """Return how many columns or rows a layer has to share out."""
    if isinstance(layer, nn.Linear):
        return layer.out_features if cut == "column" else layer.in_features
    assert isinstance(layer, nn.Embedding)
    return layer.embedding_dim if cut == "column" else layer.num_embeddings


def _check_way(pattern: object, way: object) -> None:
    if not isinstance(pattern, str) or way not in _WAYS:
        raise ConfigurationError(
            f"A plan maps patterns of layer names to one of {', '.join(map(repr, _WAYS))}. "
            f"Received: {pattern!r}: {way!r}."
        )


def _check_layer(name: str, layer: nn.Module, way: str) -> None:
    if not isinstance(layer, _CUT):
        raise Unsupported(
            f"split='tensor' cuts Linear and Embedding layers. Received: {name}, a "
            f"{type(layer).__name__}, as {way!r}. Leave it out of the plan, which keeps it whole; "
            "or use 'sharded', which cuts any layer, or split='pipeline'."
        )
    if isinstance(layer, nn.Embedding) and layer.max_norm is not None:
        raise Unsupported(
            "An embedding that rescales its rows as it reads them cannot be cut. Received: "
            f"{name} with max_norm={layer.max_norm}. Leave it out of the plan, or use 'mirrored'."
        )


def _check_owner(name: str, module: nn.Module) -> None:
    owner = module.get_submodule(name.rpartition(".")[0])
    if isinstance(owner, nn.MultiheadAttention):
        raise Unsupported(
            "nn.MultiheadAttention computes with its parameters itself, its query, key and value "
            f"packed in one, so none is cut. Received: {name} in plan=. Remove it, which keeps the "
            "attention whole; write it with a Linear for each; or use 'sharded'."
        )


def _cuttable(named: Mapping[str, nn.Module], count: int = 12) -> list[str]:
    names = [name for name, part in named.items() if isinstance(part, _CUT)]
    return [*names[:count], "..."] if len(names) > count else names
