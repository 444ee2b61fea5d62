"""The steps on NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@final
class NumpyOps:
    """Ops of NumPy."""

    def permute(self, x: Array, axes: Sequence[int]) -> Array:
        return np.transpose(x, axes)

    def reshape(self, x: Array, shape: Sequence[int]) -> Array:
        return np.reshape(x, shape)

    def reorder(self, x: Array, dim: int, order: Sequence[int]) -> Array:
        return np.take(x, order, axis=dim)

    def split(self, x: Array, count: int) -> Sequence[Array]:
        return np.split(x, count)

    def join(self, parts: Sequence[Array]) -> Array:
        return np.concatenate(parts)

    def zeros(self, like: Array) -> Array:
        return np.zeros_like(like)


OPS = NumpyOps()
