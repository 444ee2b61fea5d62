"""What a gradient that reaches an optimizer is worth, and whether others have added theirs.

An optimizer that dream has distributed looks here each time it applies gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Update:
    """Gradients that an optimizer was to apply, kept until they are reduced."""

    optimizer: Any
    gradients: list[Any]
    variables: list[Any] | None


@dataclass(slots=True)
class Scope:
    """The step that is going on.

    weight: what this rank's gradients count for, so that the mean over the parts is that over
        the global batch: a number or a scalar tensor.
    reduced: the gradients are global already.
    held: where updates wait until the end of the step; None applies them at once.
    """

    weight: Any = 1.0
    reduced: bool = False
    held: list[Update] | None = field(default=None)


_scope: ContextVar[Scope | None] = ContextVar("dream.keras_step", default=None)


_announced: ContextVar[bool] = ContextVar("dream.keras_announced", default=False)


def announce() -> None:
    """The loss has been weighed by the user: the optimizer applied next reduces its gradients as
    they are."""
    _announced.set(True)


def take_announced() -> bool:
    """Whether the loss has been weighed; asking uses it up."""
    said = _announced.get()
    _announced.set(False)
    return said


def current() -> Scope | None:
    """The step that is going on here, or None."""
    return _scope.get()


@contextmanager
def step_scope(weight: Any = 1.0) -> Iterator[Scope]:
    """Optimizers inside reduce gradients that weigh `weight` (`Share.weight`), then apply them."""
    with _entered(Scope(weight)) as scope:
        yield scope


@contextmanager
def reduced_scope() -> Iterator[Scope]:
    """Optimizers inside are given gradients that are global already."""
    with _entered(Scope(reduced=True)) as scope:
        yield scope


@contextmanager
def holding_scope(weight: Any) -> Iterator[list[Update]]:
    """Optimizers inside weigh the loss by `weight` where they scale it, and apply nothing: their
    updates wait in the list."""
    held: list[Update] = []
    with _entered(Scope(weight, held=held)):
        yield held


def hold(optimizer: Any, gradients: Sequence[Any], variables: Any) -> bool:
    """Keep an update for the end of the step, where there is one that waits for it."""
    scope = current()
    if scope is None or scope.held is None:
        return False
    variables = None if variables is None else list(variables)
    scope.held.append(Update(optimizer, list(gradients), variables))
    return True


@contextmanager
def _entered(scope: Scope) -> Iterator[Scope]:
    token = _scope.set(scope)
    try:
        yield scope
    finally:
        _scope.reset(token)
