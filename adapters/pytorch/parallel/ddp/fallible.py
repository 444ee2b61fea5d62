"""The explicit step's passes, which one rank may not come through: it tells the others where they
will next hear of it."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol, final

import torch

from dream.adapters.pytorch.loss.backward import WeighedBackward
from dream.collectives import Communicator
from dream.update import fitting


class Halves(Protocol):
    """A model's passes."""

    def forward(self, batch: Any, part: Any, *, first: bool, last: bool) -> torch.Tensor:
        """Return the loss of a micro-batch."""

    def backward(self, value: torch.Tensor) -> None: ...

    def told(self) -> torch.Tensor: ...


class Root(Protocol):
    """A module whose gradients are averaged once an update has been computed."""

    def give_up(self, word: float) -> NoReturn: ...


@final
class FallibleLoss:
    """Ranks hear of one whose memory ran out with the gradients. As long as they find out together
    what a loss is, in the first backward passes, they ask each other before each, too."""

    def __init__(
        self, passes: Halves, root: Root, backward: WeighedBackward, ranks: Communicator
    ) -> None:
        self._passes, self._root = passes, root
        self._backward, self._ranks = backward, ranks.unchecked()
        self._ends = False  # no rank asks any more in this update

    def run(self, batch: Any, weight: Any, *, first: bool, last: bool) -> None:
        """Raises `RanOut` where another rank did not come as far."""
        self._ends = False
        value = self._passes.forward(batch, weight, first=first, last=last)
        self._ask(fitting.WENT_WELL)
        self._ends = last
        self._passes.backward(value)

    def give_up(self, word: float) -> NoReturn:
        """Tell the others. Raises `RanOut`, as on them."""
        self._backward.taken_elsewhere()
        if not self._ends:
            self._ask(word)
        self._root.give_up(word)

    def told(self) -> torch.Tensor:
        return self._passes.told()

    def _ask(self, word: float) -> None:
        if not self._backward.reader.silent:
            told = self._ranks.all_reduce(torch.tensor([word], dtype=torch.float64), "sum")
            fitting.hear(float(told))
