"""What an optimizer is given in a step, kept from being applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any, final

from dream._errors import DreamError, Unsupported
from dream.adapters.keras import private


@final
class Catching:
    """The optimizers of a block. by_hand: the error of one that is applied outside a step."""

    def __init__(self, by_hand: Callable[[Any], DreamError]) -> None:
        self._by_hand = by_hand
        self._caught: list[tuple[Sequence[Any], Sequence[Any]]] | None = None

    def take(self, optimizer: Any) -> Any:
        """The optimizer, whose `apply` from now on only says what it was given. Its class's own
        still applies."""
        if "apply" in vars(optimizer):
            return optimizer
        catching = self

        def apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> None:
            if catching._caught is None:
                raise catching._by_hand(self)
            if trainable_variables is None:
                trainable_variables = private.known_to(self)
            catching._caught.append((list(grads), list(trainable_variables)))

        optimizer.apply = MethodType(apply, optimizer)
        return optimizer

    @contextmanager
    def gradients(self, order: Sequence[Any]) -> Iterator[list[Any]]:
        """The gradients that an optimizer is given inside, in this order of variables, None where
        it is given none; the list is filled at the end."""
        found: list[Any] = []
        before, self._caught = self._caught, []
        try:
            yield found
            if len(self._caught) != 1:
                raise Unsupported(
                    "A step has one gradient. Received: a step that applied "
                    f"{len(self._caught)}. Call the optimizer once in train_step."
                )
            ((gradients, variables),) = self._caught
            by_variable = dict(zip(map(id, variables), gradients, strict=True))
            found.extend(by_variable.get(id(v)) for v in order)
        finally:
            self._caught = before
