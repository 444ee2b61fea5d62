"""What came of the comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, final

from dream.tools.port_check.description import Layer
from dream.tools.port_check.gap import Gap
from dream.tools.port_check.settings import Setting

Where = Literal["before", "in", "after"]


@final
@dataclass(frozen=True, slots=True)
class Row:
    """Two layers that belong together.

    values: of parameters, by role, where the new model kept its own; given, gave: what goes in
        and comes out before the layer's own activation, None where one was not seen; gradients:
        by role.
    """

    old: Layer
    new: Layer
    values: Mapping[str, Gap] = field(default_factory=dict)
    given: Gap | None = None
    gave: Gap | None = None
    gradients: Mapping[str, Gap] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True)
class Found:
    """The first that differs. layer: the old model's; None for the outputs. where: in the layer,
    before its input, or behind the last layer. role: of a parameter, for values and gradients."""

    layer: str | None
    gap: Gap
    where: Where = "in"
    role: str = ""


@final
@dataclass(frozen=True, slots=True)
class Report:
    """Everything that `dream port-check` tells.

    loss: of the old and the new model. first_value, first_layer, first_gradient: the first that
    differs, None where none does. Gradients are gone through from the outputs back where the
    outputs agree, else in the order of the layers, since all behind a difference differ.
    shaken: what was all one number and got others in both models, as "layer role".
    """

    rows: tuple[Row, ...]
    outputs: tuple[Gap, ...]
    loss: tuple[float, float]
    settings: tuple[Setting, ...]
    first_value: Found | None
    first_layer: Found | None
    first_gradient: Found | None
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
