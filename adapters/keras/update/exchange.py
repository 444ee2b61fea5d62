"""One gradient of what the parts of a batch have made, where that is not their sum."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any


class PartsExchange(ABC):
    """Makes one gradient of the parts' where that is not their sum; in a step, compiled or not.
    All parts come out with the same bits."""

    @abstractmethod
    def __call__(self, variables: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """Return what stands for the mean of the parts' gradients.

        variables: Keras's, whose the gradients are; the same from step to step. gradients: dense,
        weighed so that their plain mean over the parts is that over the global batch.
        """

    def present(self, variables: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """Exchange the gradients there are; None stays for a variable that took no part."""
        taking_part = [v for v, g in zip(variables, gradients, strict=True) if g is not None]
        return on_present(gradients, lambda present: self(taking_part, present))


def on_present(
    gradients: Sequence[Any], function: Callable[[list[Any]], Iterable[Any]]
) -> list[Any]:
    """Apply a function of all gradients to those there are; None stays None."""
    present = [g for g in gradients if g is not None]
    found = iter(function(present) if present else ())
    return [None if g is None else next(found) for g in gradients]
