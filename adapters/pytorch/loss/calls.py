"""Which forward calls a loss came from: each training call leaves a mark on its outputs' nodes. And
the few numbers that all ranks tell each other with the backward pass of what was called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np
import torch

from dream.adapters.pytorch.private import tree_leaves
from dream.adapters.pytorch.randomness.joins import joins
from dream.data.partition import Share

if TYPE_CHECKING:
    from dream.adapters.pytorch.loss.coupling.untraced import UntracedInput

_SMALL = 1 << 16
_NEAR = 4
"""Nodes between two calls that are looked at for what the second is on."""
CALL_AT, OUTPUT_AT = "dream.call", "dream.output"
"""Keys of a graph node's metadata, which lives as long as the node does."""

SIZE = 6
"""Numbers in a message: the loss, what was counted beyond what was expected, whether the loss's
parts count differently, whether a divisor is no longer what it was found to be, and a stamp of the
optimizers' learning rates and steps with its square."""
VALUE, EXTRA, PARTS, OVERTAKEN, STAMP, SQUARE = range(SIZE)
BACKWARD = "loss.backward"
"""The name by which ranks meet in a backward pass, where they meet."""
COUNTS = 1024.0
"""What is told beside the parts where the loss is divided by a count of all ranks."""

Numbers = Sequence[float] | torch.Tensor
"""A message: a tensor, of shape (SIZE,), where its numbers are on a device that is not waited
for."""


class Stamped(Protocol):
    """What sees by a message whether the ranks are alike."""

    def stamp(self) -> int:
        """Return a small number that is to be the same on every rank."""

    def hear(self, stamps: float, squares: float) -> None:
        """Be told the means over the ranks, of the numbers and of their squares."""


def as_tensor(numbers: Numbers, like: torch.Tensor) -> torch.Tensor:
    """A message as a tensor, of a dtype that its loss, `like`, goes into."""
    if isinstance(numbers, torch.Tensor):
        return numbers
    dtype = np.float64 if like.dtype == torch.float64 else np.float32
    return torch.from_numpy(np.array(numbers, dtype))  # in a third of torch.tensor's time


@final
class LossMessage(torch.nn.Parameter):
    """Carries a few numbers to all ranks: its gradient, among the gradients."""


LATE = "dream.late"
"""Noted on a loss's node where it is to hold the global value once its backward has ended."""


def is_late(root: torch.Tensor) -> bool:
    node: Any = root.grad_fn
    return node is not None and LATE in node.metadata


class Bearer(ABC):
    """A distributed module as backward sees it: in a backward pass its gradients become the mean
    over the ranks that share batches, and a message of a few numbers travels with them."""

    alone = False
    """Whether it stands for parameters that a loop uses by itself, in no module."""

    @property
    def meets(self) -> bool:
        """Whether all ranks meet in its forward pass."""
        return False

    @property
    @abstractmethod
    def waits(self) -> bool:
        """Whether it was called in training, and no backward has come since."""

    @property
    @abstractmethod
    def completes(self) -> bool:
        """Whether the gradient is whole, and made global, with the next backward."""

    def ride(self, message: Numbers) -> bool:
        """Have the message travel by itself with the gradients of the backward that is about to
        start. Returns whether it does; else it is to be sent. Messages of an update's
        micro-batches are added up."""
        return False

    def carry(
        self, message: Numbers, loss: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Have the message travel, either way: what backward starts from beside the loss, and the
        gradient there; None where it has its own way."""
        return None if self.ride(message) else self.send(as_tensor(message, loss))

    @abstractmethod
    def send(self, message: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Send the message, shape (SIZE,), likewise. What backward starts from beside the loss, and
        the gradient there; None where the message has its own way."""

    def finish(self, run: Callable[..., None]) -> None:  # noqa: B027
        """Backward has ended: where it completes, have parameters reduced too that it did not come
        to. run: backward."""

    def taken_elsewhere(self) -> None:  # noqa: B027
        """No backward pass will come: its gradients were taken, and averaged, without one."""

    @abstractmethod
    def received(self) -> Numbers:
        """After backward: the mean over the ranks of what was sent, or rode. Shape (SIZE,)."""

    @property
    @abstractmethod
    def trained(self) -> list[torch.nn.Parameter]:
        """The parameters whose gradients become global here."""


@final
class TrainingCall:
    """A training call of a distributed module.

    bearer: None where outputs of all ranks were gathered. share: of the batch that its inputs were
    of; None for a whole one, which every rank has. inputs: the graph's nodes that they came from.
    keeps: whether small outputs stay with their nodes: a graph keeps no targets that are subtracted
    from them. returned: whether it has. several: whether it is on batches of several sizes, so that
    a mean need not be over its share's samples. untraced: what it was given, for the ranks to
    compare; whole: a digest of that, where no loader gave it.
    """

    __slots__ = ("bearer", "inputs", "keeps", "returned", "several", "share", "untraced", "whole")

    def __init__(self, bearer: Bearer | None, share: Share | None, inputs: Sequence[Any]) -> None:
        self.bearer, self.share, self.inputs = bearer, share, inputs
        self.keeps = self.returned = self.several = False
        self.untraced: UntracedInput | None = None
        self.whole: float | None = None

    @classmethod
    def of(cls, bearer: Bearer, share: Share | None, given: Sequence[Any]) -> TrainingCall:
        """given: what the module is called on."""
        tensors: list[torch.Tensor] = []
        for x in given:
            if isinstance(x, torch.Tensor):
                tensors.append(x)
            elif isinstance(x, (list, tuple, dict)):
                tensors += [each for each in tree_leaves(x) if isinstance(each, torch.Tensor)]
        call = cls(bearer, share, [x.grad_fn for x in tensors if x.grad_fn is not None])
        if joins.used or len(tensors) > 1:
            joined = joins.used and any(map(_comes_of_several, call.inputs))
            call.several = joined or joins.of_several(tensors)
        return call

    def mark(self, output: Any) -> None:
        """Leave the mark on what the call returned."""
        self.returned = True
        for x in (output,) if isinstance(output, torch.Tensor) else tree_leaves(output):
            node: Any = x.grad_fn if isinstance(x, torch.Tensor) else None
            if node is not None:
                node.metadata[CALL_AT] = self
                if self.keeps and x.numel() <= _SMALL:
                    node.metadata[OUTPUT_AT] = x.detach()


def _comes_of_several(node: Any) -> bool:
    """Whether it is, or is taken of, what a call on batches of several sizes gave."""
    for _ in range(_NEAR):
        call = call_at(node)
        if call is not None:
            return call.several
        node = next((each for each, _ in node.next_functions if each is not None), None)
        if node is None:
            return False
    return False


def call_at(node: Any) -> TrainingCall | None:
    """The call that returned what this node made."""
    found: TrainingCall | None = node.metadata.get(CALL_AT)
    return found
