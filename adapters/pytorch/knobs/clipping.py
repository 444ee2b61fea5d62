"""The global gradient, clipped once it is complete."""

from __future__ import annotations

from typing import final

from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from dream._knobs import Knobs


@final
class Clipping:
    """By norm or by value, in place; nothing where neither was asked for."""

    def __init__(self, knobs: Knobs) -> None:
        self._norm, self._value = knobs.clip_norm, knobs.clip_value

    def __call__(self, parameters: list[nn.Parameter]) -> None:
        if self._norm is not None:
            clip_grad_norm_(parameters, self._norm)
        if self._value is not None:
            clip_grad_value_(parameters, self._value)
