"""A plan by hand: patterns of layer names, and how the layers they name are cut."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal

from torch import nn

from dream._errors import ConfigurationError, Unsupported

Cut = Literal["column", "row"]
_WAYS = ("column", "row", "replicate")
_CUT = (nn.Linear, nn.Embedding)


def cuts_of(module: nn.Module, plan: Mapping[object, object]) -> dict[str, Cut]:
    """How each layer that the plan names is cut, by name. The first pattern that fits counts."""
    named = {name: part for name, part in module.named_modules() if name}
    cuts: dict[str, Cut] = {}
    settled: set[str] = set()
    for pattern, way in plan.items():
        _check(pattern, way)
        fitting = [name for name in named if fnmatchcase(name, str(pattern))]
        if not fitting:
            raise ConfigurationError(
                f"No layer has such a name. Received: plan={{{pattern!r}: {way!r}}} for "
                f"{type(module).__name__}. Its layers: {', '.join(_first(named))}."
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
    """How many columns or rows a layer has to share out."""
    if isinstance(layer, nn.Linear):
        return layer.out_features if cut == "column" else layer.in_features
    assert isinstance(layer, nn.Embedding)
    return layer.embedding_dim if cut == "column" else layer.num_embeddings


def _check(pattern: object, way: object) -> None:
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
            f"packed in one, so none is cut. Received: {name} in plan=. Leave it out, which keeps "
            "the attention whole; write it with a Linear for each; or use 'sharded'."
        )


def _first(named: Mapping[str, nn.Module], count: int = 12) -> list[str]:
    names = [name for name, part in named.items() if isinstance(part, _CUT)]
    return [*names[:count], "..."] if len(names) > count else names
