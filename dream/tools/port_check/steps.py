"""From a framework's layout of an array to the canonical one and back: plain data, so that each
adapter does it with operations of its own, on a gradient's path or in a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, final

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
    """What an adapter can do with its arrays. Nothing is changed in place."""

    def permute(self, x: Any, axes: Sequence[int]) -> Any: ...

    def reshape(self, x: Any, shape: Sequence[int]) -> Any: ...

    def reorder(self, x: Any, dim: int, order: Sequence[int]) -> Any: ...

    def split(self, x: Any, count: int) -> Sequence[Any]:
        """Equal pieces along dim 0."""

    def join(self, parts: Sequence[Any]) -> Any:
        """The inverse of `split`."""

    def zeros(self, like: Any) -> Any: ...


def apply(steps: Steps, x: Any, ops: Ops) -> Any:
    """The array after all steps, in order."""
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
    """The steps that undo these."""
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
    """The shape that an array of `shape` has after all steps."""
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
    """Steps that take `dim`, the row-major flattening of (*space, channels), to the flattening
    of (channels, *space). None where that is the same order."""
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
