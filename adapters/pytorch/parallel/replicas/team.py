"""Who runs the replicas of a module in one process: on devices side by side, or rows of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final
from weakref import WeakSet

import torch
from torch import nn

from dream.adapters.pytorch import buffers
from dream.adapters.pytorch.parallel.replicas.copies import copy_of, leaf, on
from dream.adapters.pytorch.parallel.replicas.data_parallel import (
    Devices,
    parallel_apply,
    replicate,
    scatter,
)
from dream.adapters.pytorch.parallel.replicas.meeting import meeting, normalises
from dream.adapters.pytorch.slot import set_slot

Loss = Callable[[Any, Any], Any]


@final
class Scored(nn.Module):
    """A model and its loss, which may have parameters too."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        set_slot(self, None)
        self.model, self.loss = model, loss


class Team(ABC):
    """What runs replicas at the same time.

    size: how many. first: the device of what is gathered. meets: whether replicas may wait for one
    another in the middle of a model.
    """

    size: int
    first: torch.device
    meets = False

    @abstractmethod
    def replicas(self, module: nn.Module, count: int) -> list[nn.Module]:
        """Copies whose gradients are the module's own."""

    @abstractmethod
    def leaves(self, scored: Scored, index: int) -> Scored:
        """The copy of one place, with gradients of its own; of the first, the module itself."""

    @abstractmethod
    def opened(self, module: nn.Module) -> Collection[str]:
        """The parts, by name, that a call looks into, and does not call as one."""

    @abstractmethod
    def expect(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Get ready for calls like this one, before there are several at the same time."""

    @abstractmethod
    def scatter(self, batch: Any) -> list[Any]:
        """A part of the batch for each."""

    @abstractmethod
    def call(
        self,
        index: int,
        module: nn.Module,
        replica: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The output of a module's replica, in its place."""

    @abstractmethod
    def apply(self, functions: Sequence[Callable[..., Any]], parts: Sequence[Any]) -> list[Any]:
        """`functions[i](*parts[i])` in place i, all at the same time."""


@final
class Replicas(Team):
    """Each on a device of its own."""

    meets = True

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self.size, self.first = len(devices), devices[0]

    def replicas(self, module: nn.Module, count: int) -> list[nn.Module]:
        return replicate(module, self._devices[:count])

    def leaves(self, scored: Scored, index: int) -> Scored:
        return copy_of(scored, leaf(on(self._devices[index]))) if index else scored

    def opened(self, module: nn.Module) -> Collection[str]:
        return ()

    def expect(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del module, args, kwargs

    def scatter(self, batch: Any) -> list[Any]:
        return scatter(batch, self._devices)

    def call(
        self,
        index: int,
        module: nn.Module,
        replica: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        return replica(*args, **kwargs)

    def apply(self, functions: Sequence[Callable[..., Any]], parts: Sequence[Any]) -> list[Any]:
        return parallel_apply(functions, parts, self._devices)


@contextmanager
def waiting(
    replicas: Sequence[nn.Module], *, together: bool
) -> Iterator[Callable[..., Callable[..., Any]]]:
    """Replicas whose BatchNorms wait for each other, where they are to and there are any."""
    if together and len(replicas) > 1 and normalises(replicas[0]):
        with meeting(replicas) as watched:
            yield watched
    else:
        yield lambda call: call


_told: WeakSet[nn.Module] = WeakSet()


def tell_of_statistics(module: nn.Module) -> None:
    """Once for each module that is trained in parts."""
    if torch.is_grad_enabled() and module not in _told:
        _told.add(module)
        buffers.tell_local_statistics(module)
