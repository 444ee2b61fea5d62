"""What every distributed module is: the outermost one that the user calls."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn

from dream._errors import ConfigurationError
from dream.adapters.pytorch import buffers
from dream.adapters.pytorch.backwards import Backwards
from dream.adapters.pytorch.errors import share_of_one
from dream.adapters.pytorch.slot import Slot, set_slot, slot_of

if TYPE_CHECKING:
    from dream.adapters.pytorch.parallel.ddp.modules import Modules

Forward = Callable[..., Any]


def training_call(room: Modules) -> bool:
    """Whether a module called now is called by the user's training loop: with gradients on, not
    by another distributed module, and not by a recomputation during backward."""
    return not room.inside and torch.is_grad_enabled() and not recomputing()


def recomputing() -> bool:
    """Whether this is a call that a backward pass repeats."""
    return torch._C._current_graph_task_id() != -1


class Reducing(Slot):
    """Takes the calls of one module, whose gradients become global in backward.

    The module keeps its class, its names and its state.
    """

    def __init__(self, module: nn.Module, room: Modules, inner: Forward | None) -> None:
        super().__init__(module, inner)
        self.room = room
        self.backwards = Backwards()

    def trains(self) -> bool:
        """Whether a part that is called now is called by a training call of the whole."""
        return self.room.inside or recomputing()

    @property
    @abstractmethod
    def trained(self) -> list[nn.Parameter]:
        """The parameters whose gradients are reduced here."""

    @abstractmethod
    def prepare(self) -> None:
        """Be ready for the first call, as far as can be before it."""

    @abstractmethod
    def weigh_by_hand(self, count: float) -> None:
        """The user says what the loss of the next backward is the mean over: `count` things."""

    @abstractmethod
    def release(self) -> None:
        """Stop reducing: another module's root takes over."""

    def _call(
        self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any], *, empty: bool
    ) -> Any:
        """A forward pass whose backward will be reduced."""
        self.backwards.arm()
        self.room.inside = True
        try:
            if empty:
                return call_empty(self.module, forward, args, kwargs)
            return call_share(self.module, forward, args, kwargs)
        finally:
            self.room.inside = False


def call_share(
    module: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A forward pass on a rank's share of a batch."""
    try:
        return forward(*args, **kwargs)
    except ValueError as error:
        known = share_of_one(error, type(module).__name__)
        if known is None:
            raise
        raise known from error


def call_empty(
    module: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A forward pass on no sample, which leaves no trace in running statistics."""
    running = buffers.running(buffers.norms(module))
    before = [buffer.clone() for buffer in running]
    try:
        output = forward(*args, **kwargs)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{type(module).__name__} cannot take an empty batch, and this rank has no "
            f"sample of the last one. Received: {error}. Say drop_last=True, or choose a "
            "batch_size that leaves every rank a sample."
        ) from error
    for buffer, value in zip(running, before, strict=True):
        buffer.copy_(value)
    return output


def claim_parts(root: Reducing) -> None:
    """Know when one of the module's parts is called by itself."""
    for part in root.module.modules():
        if part is not root.module and not isinstance(slot_of(part), Part):
            set_slot(part, Part(part, root))


@final
class Part(Slot):
    """Takes the calls of a part of a distributed module. It changes nothing; where the part is
    called by itself in training, it has the gradients from there watched."""

    def __init__(self, module: nn.Module, root: Reducing) -> None:
        super().__init__(module)
        self._root = root
        self._room = root.room

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        output = self.inner(*args, **kwargs)
        if training_call(self._room):
            self._root.backwards.part_called(output)
        return output
