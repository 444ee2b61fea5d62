"""Match the layers of two models, and compare the hyper-parameters of each pair."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, final

from dream._errors import ConfigurationError, unknown
from dream.model_description.layers import OTHER, Description, Layer, Parameter
from dream.model_description.steps import Shape
from dream.tools.port_check.probe import Facts

OPTIONAL = frozenset({"bias", "beta", "input_bias", "recurrent_bias", "query_bias", "key_bias",
                      "value_bias", "output_bias"})  # fmt: skip
"""Roles that a port may have forgotten: `match` can let them be."""


@final
@dataclass(frozen=True, slots=True)
class Pair:
    """Two layers that belong together.

    missing_in_old, missing_in_new: the optional roles that only the other has.
    """

    old: Layer
    new: Layer

    @property
    def missing_in_old(self) -> list[str]:
        return [role for role in self.new.roles if role not in self.old.roles]

    @property
    def missing_in_new(self) -> list[str]:
        return [role for role in self.old.roles if role not in self.new.roles]

    @property
    def roles(self) -> list[str]:
        """Those of both."""
        return [role for role in self.old.roles if role in self.new.roles]


def match(
    old: Description,
    new: Description,
    mapping: Mapping[str, str] | None = None,
    *,
    optional: bool = False,
) -> list[Pair]:
    """Layers by order, each with its like in kind, roles and canonical shapes; those of kind
    "other" by order among themselves.

    mapping: old name -> new name, of layers or of parameters in them; the layers that it does not
        name are matched by order.
    optional: a bias that one of the two has not is let be.
    Raises ConfigurationError naming the first pair that does not fit, with both shapes.
    """
    named = _named(old, new, mapping or {})
    if old.framework != new.framework:  # alike by the user's choice, not by numbering
        named = _same_names(old, new, optional, set(named.values())) | named
    taken = set(named.values())
    olds, rest = _with_partners(
        old.layers, [layer for layer in new.layers if layer.name not in taken], named
    )
    # a layer that is called first may hold all the others: parameters of its own have no place
    queues = {own: iter([each for each in rest if (each.kind == OTHER) == own])
              for own in (True, False)}  # fmt: skip
    pairs = []
    for layer in olds:
        name = named.get(layer.name)
        other = new.layer(name) if name else next(queues[layer.kind == OTHER], None)
        if other is None:
            raise _lonely(layer, "old", "new", len(old.layers), len(new.layers))
        _check(layer, other, optional)
        pairs.append(Pair(layer, other))
    for left in (*queues[False], *queues[True]):
        raise _lonely(left, "new", "old", len(new.layers), len(old.layers))
    return pairs


def _with_partners(
    olds: Sequence[Layer], news: Sequence[Layer], named: Mapping[str, str]
) -> tuple[Sequence[Layer], Sequence[Layer]]:
    """Leave out layers that are but another name for parameters, where only one model has them: an
    output layer tied to an embedding may be a product with it in the other."""
    if len(olds) - len(named) == len(news):
        return olds, news
    olds = [layer for layer in olds if layer.name in named or not _all_tied(layer)]
    return olds, [layer for layer in news if not _all_tied(layer)]


def _all_tied(layer: Layer) -> bool:
    return all(parameter.same_as for parameter in layer.parameters)


def _named(old: Description, new: Description, mapping: Mapping[str, str]) -> dict[str, str]:
    """Layer's name -> layer's name."""
    found: dict[str, str] = {}
    owners, others = _owners(old.layers), _owners(new.layers)
    for name, other in mapping.items():
        if name not in owners:
            raise unknown("name of the old model in the map", name, owners)
        if other not in others:
            raise unknown("name of the new model in the map", other, others)
        if found.setdefault(owners[name], others[other]) != others[other]:
            raise ConfigurationError(
                f"The map gives a layer two partners. Received: {owners[name]!r} -> "
                f"{found[owners[name]]!r} and {others[other]!r}. Leave one of them."
            )
    if len(set(found.values())) < len(found):
        raise ConfigurationError(
            "The map gives two layers the same partner. Received: "
            f"{', '.join(f'{a!r} -> {b!r}' for a, b in found.items())}. Name each once."
        )
    return found


def _same_names(
    old: Description, new: Description, optional: bool, taken: Set[str]
) -> dict[str, str]:
    """Name -> name of layers that are called alike and fit: two heads may be called in either
    order."""
    news = {_plain(layer): layer for layer in new.layers if layer.name not in taken}
    return {
        layer.name: like.name
        for layer in old.layers
        for like in (news.get(_plain(layer)),)
        if like is not None and _fits(layer, like, optional)
    }


def _plain(layer: Layer) -> str:
    return layer.name.replace(".", "/")


def _fits(old: Layer, new: Layer, optional: bool) -> bool:
    try:
        _check(old, new, optional)
    except ConfigurationError:
        return False
    return True


def _owners(layers: Sequence[Layer]) -> dict[str, str]:
    """Name of a layer or parameter -> its layer's name."""
    owners = {p.name: layer.name for layer in layers for p in layer.parameters}
    return owners | {layer.name: layer.name for layer in layers}


def _check(old: Layer, new: Layer, optional: bool) -> None:
    if old.kind != new.kind:
        raise _unlike(old, new, "are of different kinds")
    differing = [role for role in old.roles.keys() | new.roles.keys()
                 if old.roles.get(role) != new.roles.get(role)]  # fmt: skip
    alone = [old.roles.keys() - new.roles.keys(), new.roles.keys() - old.roles.keys()]
    if optional and old.kind != OTHER and not all(alone):
        differing = [r for r in differing if r not in OPTIONAL & (alone[0] | alone[1])]
    if differing:
        raise _unlike(old, new, f"differ in {', '.join(sorted(differing))}")


def _unlike(old: Layer, new: Layer, how: str) -> ConfigurationError:
    return ConfigurationError(
        f"Layers that come at the same place {how}. Received: {_words(old)} and {_words(new)}. "
        "Correct the model, or map the names of layers {old: new}."
    )


def _lonely(layer: Layer, here: str, there: str, count: int, others: int) -> ConfigurationError:
    return ConfigurationError(
        f"A layer of the {here} model has no partner. Received: {_words(layer)}; {count} layers "
        f"with parameters, the {there} model has {others}. Correct the model, or map the names "
        "of layers {old: new}."
    )


def _words(layer: Layer) -> str:
    shapes = ", ".join(f"{role} {_shown(shape)}" for role, shape in layer.roles.items())
    return f"{layer.name!r} ({layer.kind}: {shapes})"


def _shown(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"


Pads = tuple[tuple[int, int], ...]


@final
@dataclass(frozen=True, slots=True)
class Setting:
    """A hyper-parameter that differs.

    forward: the outputs show whether it matters (padding may lie in a layer before); what they
        cannot show (momentum), or hide (epsilon), is a difference by itself.
    """

    layer: str
    name: str
    old: Any
    new: Any
    forward: bool = False


def differing(
    pair: Pair, old_given: Shape | None = None, new_given: Shape | None = None
) -> list[Setting]:
    """old_given, new_given: the shapes of what goes into the layer, canonical, if seen."""
    old, new = dict(pair.old.settings), dict(pair.new.settings)
    for settings, layer, given in ((old, pair.old, old_given), (new, pair.new, new_given)):
        if "padding" not in settings:
            continue
        space = given[1:-1] if given is not None and len(given) >= 3 else _any_space(settings)
        if space is not None:
            settings["padding"] = pads(settings, layer.roles["kernel"][: len(space)], space)
    transposed = pair.old.kind.startswith("conv_transpose")
    left_out = {"class"} | ({"padding"} if transposed else set())
    found = [
        Setting(pair.old.name, name, old[name], new[name], name in _FORWARD)
        for name in old
        if name in new and name not in left_out and not _alike(old[name], new[name])
    ]
    return [*found, *_missing(pair), *_of_parameters(pair)]


_FORWARD = ("strides", "padding", "dilation", "padding_mode", "activation", "recurrent_activation",
            "reverse")  # fmt: skip


def pads(settings: Mapping[str, Any], kernel: Sequence[int], space: Sequence[int]) -> Pads | str:
    """Return what a convolution adds on each side of each dim of space."""
    padding = settings["padding"]
    if not isinstance(padding, str):
        return tuple(padding)
    each = []
    for size, wide, stride, gap in zip(
        space, kernel, settings["strides"], settings["dilation"], strict=True
    ):
        reach = gap * (wide - 1)
        if padding == "same":
            total = max((math.ceil(size / stride) - 1) * stride + reach + 1 - size, 0)
            each.append((total // 2, total - total // 2))
        else:
            each.append((reach, 0) if padding == "causal" else (0, 0))
    return tuple(each)


def _any_space(settings: Mapping[str, Any]) -> Shape | None:
    """Return sizes of space that stand for all, where what is added is the same for all."""
    strides = settings["strides"]
    alike = settings["padding"] != "same" or set(strides) == {1}
    return (1,) * len(strides) if alike else None


def _alike(old: Any, new: Any) -> bool:
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=1e-6)
    return bool(old == new)


def _missing(pair: Pair) -> list[Setting]:
    return [Setting(pair.old.name, role, "missing", "there") for role in pair.missing_in_old] + [
        Setting(pair.old.name, role, "there", "missing") for role in pair.missing_in_new
    ]


def _of_parameters(pair: Pair) -> list[Setting]:
    found = []
    for role in pair.roles:
        old, new = pair.old.holders(role)[0], pair.new.holders(role)[0]
        if old.trainable != new.trainable:
            words = ["trained" if p.trainable else "frozen" for p in (old, new)]
            found.append(Setting(pair.old.name, f"{role}: trainable", words[0], words[1]))
        if bool(old.same_as) != bool(new.same_as):
            found.append(Setting(pair.old.name, f"{role}: tied", _tied(old), _tied(new)))
    return found


def _tied(parameter: Parameter) -> str:
    return f"to {parameter.same_as}" if parameter.same_as else "no"


def order_kept(layer: str) -> str:
    """Return the remark on a layer behind a map that both models flatten channels last."""
    return (
        f"{layer}: both models flatten the map before it channels last, so its weights are taken "
        "in that order. A conversion that turns them to channels first, as that of dream's "
        "checkpoints, does not fit this model."
    )


def remarks(pairs: Sequence[Pair], old: Facts, new: Facts) -> list[str]:
    """Return what differs by the frameworks' nature, or may."""
    found = []
    if len(old.dropouts) != len(new.dropouts):
        found.append(
            f"Dropout layers: {len(old.dropouts)} in the old model, {len(new.dropouts)} in the new "
            "one. One that is called as a function is not seen."
        )
    kept = any("moving_variance" in pair.roles for pair in pairs)
    if kept and old.description.framework != new.description.framework:
        found.append(
            "BatchNorm in training: torch keeps the unbiased variance (n - 1), Keras the biased "
            "one (n), so moving variances drift apart by 1/n of themselves."
        )
    return found
