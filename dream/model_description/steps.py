"""Steps from a framework's layout of an array to the canonical one and back.

They are plain data: each adapter takes them with operations of its own, on a gradient's path
or in a graph; `NumpyOps` takes them on NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class Permute:
    """The dims in another order: dim i of the result is dim axes[i]."""

    axes: tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class Reshape:
    """The same numbers in row-major order, in another shape."""

    before: Shape
    after: Shape


@final
@dataclass(frozen=True, slots=True)
class Reorder:
    """Entry i along `dim` of the result is entry order[i]."""

    dim: int
    order: tuple[int, ...]


Step = Permute | Reshape | Reorder
Steps = tuple[Step, ...]


class Ops(Protocol):
    """An adapter's operations on its arrays. Nothing is changed in place."""

    def permute(self, x: Any, axes: Sequence[int]) -> Any: ...

    def reshape(self, x: Any, shape: Sequence[int]) -> Any: ...

    def reorder(self, x: Any, dim: int, order: Sequence[int]) -> Any: ...

    def split(self, x: Any, count: int) -> Sequence[Any]:
        """Equal pieces along dim 0."""

    def join(self, parts: Sequence[Any]) -> Any:
        """Join what `split` gave."""

    def zeros(self, like: Any) -> Any: ...


def apply(steps: Steps, x: Any, ops: Ops) -> Any:
    """Take an array through all steps, in order."""
    for step in steps:
        match step:
            case Permute(axes):
                x = ops.permute(x, axes)
            case Reshape(_, after):
                x = ops.reshape(x, after)
            case Reorder(dim, order):
                x = ops.reorder(x, dim, order)
    return x


def inverse(steps: Steps) -> Steps:
    """Return the steps that undo these."""
    return tuple(_undo(step) for step in reversed(steps))


def _undo(step: Step) -> Step:
    match step:
        case Permute(axes):
            return Permute(_inverse_order(axes))
        case Reshape(before, after):
            return Reshape(after, before)
        case Reorder(dim, order):
            return Reorder(dim, _inverse_order(order))


def _inverse_order(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(place) for place in range(len(order)))


def shape_after(steps: Steps, shape: Shape) -> Shape:
    """Return the shape that an array of `shape` has after all steps."""
    for step in steps:
        match step:
            case Permute(axes):
                shape = tuple(shape[axis] for axis in axes)
            case Reshape(before, after):
                assert shape == before
                assert prod(before) == prod(after)
                shape = after
            case Reorder():
                pass
    return shape


def dense_order(shape: Shape, dim: int, flattened: Shape) -> Steps:
    """Return steps that take `dim`, the row-major flattening of (*space, channels), to the
    flattening of (channels, *space). None where that is the same order."""
    *space, channels = flattened
    if channels == 1 or prod(space) == 1:
        return ()
    before, after = shape[:dim], shape[dim + 1 :]
    opened = (*before, *flattened, *after)
    last = dim + len(space)
    inner = (last, *range(dim, last))
    axes = (*range(dim), *inner, *range(last + 1, len(opened)))
    turned = tuple(opened[axis] for axis in axes)
    return (Reshape(shape, opened), Permute(axes), Reshape(turned, shape))


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
