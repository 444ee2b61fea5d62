"""Hyper-parameters of layers that belong together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from dream.tools.port_check.description import Parameter
from dream.tools.port_check.match import Pair
from dream.tools.port_check.probe import Facts
from dream.tools.port_check.steps import Shape

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
        if "padding" in settings and given is not None and len(given) >= 3:
            space = given[1:-1]
            settings["padding"] = pads(settings, layer.roles["kernel"][: len(space)], space)
    transposed = pair.old.kind.startswith("conv_transpose")
    left_out = {"class"} | ({"padding"} if transposed else set())
    found = [
        Setting(pair.old.name, name, old[name], new[name], name in _FORWARD)
        for name in old
        if name in new and name not in left_out and not _same(old[name], new[name])
    ]
    return [*found, *_missing(pair), *_of_parameters(pair)]


_FORWARD = ("strides", "padding", "dilation", "padding_mode", "activation", "recurrent_activation",
            "reverse")  # fmt: skip


def pads(settings: Mapping[str, Any], kernel: Sequence[int], space: Sequence[int]) -> Pads | str:
    """What a convolution adds on each side of each dim of space."""
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


def _same(old: Any, new: Any) -> bool:
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


def remarks(pairs: Sequence[Pair], old: Facts, new: Facts) -> list[str]:
    """What differs by the frameworks' nature, or may."""
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
