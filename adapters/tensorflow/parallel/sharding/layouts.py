"""How each variable of a model lies on the mesh, and what gradients are laid out like."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, final

from dream.adapters.tensorflow.parallel.sharding.dtensor import Specs

DATA, MODEL = "data", "model"
"""The mesh's axes."""


class Layouts(ABC):
    """The choice of a strategy.

    gathers: whether a forward pass is given whole variables, whose batches are shared out; else
    what is computed is shared out as the variables lie.
    """

    gathers: bool

    @abstractmethod
    def of_model(self, model: Any) -> dict[str, Specs]:
        """By path, the layout of every variable of a built model. Raises `Unsupported` where a
        layer cannot be split."""

    @abstractmethod
    def of_state(self, shape: Sequence[int], specs: Specs) -> Specs:
        """An optimizer's state that belongs to a variable, or has the same shape."""

    def of_gradient(self, shape: Sequence[int]) -> Specs | None:
        """Return the layout of a gradient before it is applied; None as it comes."""
        return None

    def by_shape(self) -> Callable[[Sequence[int]], Specs] | None:
        """Of a shape, the layout of a variable that trains; None where the shape alone does not
        tell."""
        return None


@final
class Shards(Layouts):
    """`sharded`: every rank holds a part of each variable.

    zero: 1 the optimizer's state alone, 2 gradients too, 3 variables too.
    """

    gathers = True

    def __init__(self, parts: int, zero: int) -> None:
        self._parts = parts
        self._zero = zero

    def of_model(self, model: Any) -> dict[str, Specs]:
        return {v.path: self._of_variable(v) for v in model.variables}

    def _of_variable(self, variable: Any) -> Specs:
        shape = tuple(variable.shape)
        return self._cut(shape) if variable.trainable and self._zero == 3 else whole(shape)

    def of_state(self, shape: Sequence[int], specs: Specs) -> Specs:
        return self._cut(shape)

    def of_gradient(self, shape: Sequence[int]) -> Specs | None:
        if self._zero == 3:
            return None  # as its variable lies
        return self._cut(shape) if self._zero == 2 else whole(shape)

    def by_shape(self) -> Callable[[Sequence[int]], Specs] | None:
        return self._cut if self._zero == 3 else None

    def _cut(self, shape: Sequence[int]) -> Specs:
        """Along the longest dim that the parts divide; whole where none is."""
        fit = [dim for dim, size in enumerate(shape) if size and size % self._parts == 0]
        if self._parts == 1 or not fit:
            return whole(shape)
        longest = max(fit, key=lambda dim: shape[dim])
        return tuple(DATA if dim == longest else None for dim in range(len(shape)))


def whole(shape: Sequence[int]) -> Specs:
    return (None,) * len(shape)


def belongs_to(name: str, shape: Sequence[int], variables: Sequence[Any]) -> Any | None:
    """The variable whose state has this name, as Keras gives them; None where it belongs to no
    single one."""
    named = [
        v
        for v in variables
        if name.startswith(v.path.replace("/", "_") + "_") and tuple(v.shape) == tuple(shape)
    ]
    return max(named, key=lambda v: len(v.path), default=None)
