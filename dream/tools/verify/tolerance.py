"""How far apart is still equal: what rounding does in so many updates, in so coarse a dtype.

In float32, after 20 updates: 1e-6 of a parameter, 1e-5 of a loss, which is a sum over many numbers;
relative where these are larger than 1. Roundings add up, so more updates allow more, and a coarser
dtype allows more by its own rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

LIMIT = 1e-6
"""Of a parameter, after `UPDATES` in float32."""
LOSS_LIMIT = 1e-5
"""Of a loss, a float32 mean over many samples."""
ROUNDING = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The distance from 1 to the next number."""
UPDATES = 20
NOISE = 3
"""What single is from itself, so many times, is no difference."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """updates: that the model took. parameter, loss: of numbers up to 1; of larger ones, relative
    to them."""

    dtype: str
    updates: int

    @property
    def _factor(self) -> float:
        return ROUNDING[self.dtype] / ROUNDING["float32"] * max(1.0, self.updates / UPDATES)

    @property
    def parameter(self) -> float:
        return LIMIT * self._factor

    @property
    def loss(self) -> float:
        return LOSS_LIMIT * self._factor

    @property
    def text(self) -> str:
        return (
            f"{self.dtype}, {self.updates} updates: a loss may differ by {self.loss:.1e}, a "
            f"parameter by {self.parameter:.1e} (times its largest value where that is more than 1)"
        )
