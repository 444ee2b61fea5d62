"""The result of a comparison: how far two arrays are apart, how far rounding may take them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from dream.model_description.layers import Layer
from dream.tools.port_check.match import Setting

Array = NDArray[Any]
ROUNDINGS = 32
"""Of the largest number's last place, behind one layer. They are random: behind n layers they are
the root of n times as many. Measured: 1 to 6 behind one layer, 11 behind the 66 of a ResNet."""


@final
@dataclass(frozen=True, slots=True)
class ArrayGap:
    """How far two arrays are apart.

    largest: absolute difference; inf where the shapes differ. relative: to the largest number
    that counts; tolerance: the most that `relative` may be.
    """

    largest: float
    relative: float
    tolerance: float
    shapes: tuple[tuple[int, ...], tuple[int, ...]]

    @property
    def bad(self) -> bool:
        return not self.relative <= self.tolerance

    @property
    def reshaped(self) -> bool:
        return self.shapes[0] != self.shapes[1]


def tolerance(dtype: str, depth: int, given: float | None) -> float:
    """For what lies `depth` layers from the inputs; `given`: the user's own."""
    if given is not None:
        return given
    eps = 2.0**-7 if dtype == "bfloat16" else float(np.finfo(dtype).eps)
    return ROUNDINGS * eps * math.sqrt(max(1, depth))


def gap(old: Array, new: Array, allowed: float, scale: float | None = None) -> ArrayGap:
    """scale: what differences are relative to; else the largest number of `old`."""
    shapes = (old.shape, new.shape)
    if old.shape != new.shape:
        return ArrayGap(math.inf, math.inf, allowed, shapes)
    if not old.size:
        return ArrayGap(0.0, 0.0, allowed, shapes)
    a, b = np.asarray(old, float), np.asarray(new, float)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return ArrayGap(math.inf, math.inf, allowed, shapes)
    fine = np.isfinite(a)
    with np.errstate(invalid="ignore"):
        largest = float(np.max(np.abs(a - b), where=fine, initial=0.0))
    by = scale if scale is not None else float(np.max(np.abs(a), where=fine, initial=0.0))
    return ArrayGap(largest, largest / by if by else (largest and math.inf), allowed, shapes)


Where = Literal["before", "in", "after"]


@final
@dataclass(frozen=True, slots=True)
class LayerRow:
    """Two layers that belong together.

    values: of parameters, by role, where the new model kept its own; given, gave: what goes in
        and comes out before the layer's own activation, None where one was not seen; gradients:
        by role.
    """

    old: Layer
    new: Layer
    values: Mapping[str, ArrayGap] = field(default_factory=dict)
    given: ArrayGap | None = None
    gave: ArrayGap | None = None
    gradients: Mapping[str, ArrayGap] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first that differs. layer: the old model's; None for the outputs. where: in the layer,
    before its input, or behind the last layer. role: of a parameter, for values and gradients."""

    layer: str | None
    gap: ArrayGap
    where: Where = "in"
    role: str = ""


@final
@dataclass(frozen=True, slots=True)
class PortReport:
    """Everything that `dream port-check` tells.

    loss: of the old and the new model. first_value, first_layer, first_gradient: the first that
    differs, None where none does. Gradients are gone through from the outputs back where the
    outputs agree, else in the order of the layers, since all behind a difference differ.
    shaken: what was all one number and got others in both models, as "layer role".
    """

    rows: tuple[LayerRow, ...]
    outputs: tuple[ArrayGap, ...]
    loss: tuple[float, float]
    settings: tuple[Setting, ...]
    first_value: FirstDifference | None
    first_layer: FirstDifference | None
    first_gradient: FirstDifference | None
    reasons: tuple[str, ...]
    remarks: tuple[str, ...]
    shaken: tuple[str, ...]
    given: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    backends: tuple[str, str]

    def __str__(self) -> str:
        from dream.tools.port_check.report import text  # on use: rich is for who reads

        return text(self)

    @property
    def equal(self) -> bool:
        """Whether the same weights give the same numbers, and train with the same settings."""
        found = (self.first_value, self.first_layer, self.first_gradient)
        return not any(found) and not any(not s.forward for s in self.settings)
