"""The global gradient, clipped once it is complete."""

from __future__ import annotations

from typing import final

from torch import nn

from dream.adapters.pytorch.update.spread import Spread
from dream.update.update import Knobs


@final
class Clipping:
    """By norm or by value, in place; nothing where neither was asked for."""

    def __init__(self, knobs: Knobs, spread: Spread) -> None:
        self._norm, self._value, self._spread = knobs.clip_norm, knobs.clip_value, spread

    def __call__(self, parameters: list[nn.Parameter]) -> None:
        if self._norm is not None:
            self._spread.clip_norm(parameters, self._norm)
        if self._value is not None:
            self._spread.clip_value(parameters, self._value)
