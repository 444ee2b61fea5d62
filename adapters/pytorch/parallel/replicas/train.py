"""The replicas of one process: who runs them, how they wait for one another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from torch import nn

from dream._errors import Unsupported
from dream.adapters.pytorch.call_hook import ModuleSet, ensure_hook, unwrapped
from dream.adapters.pytorch.parallel.inner_calls import called_by_user
from dream.adapters.pytorch.parallel.replicas.batch_norm import meeting, normalises
from dream.adapters.pytorch.parallel.replicas.primitives import (
    parallel_apply,
    replicate,
    scatter,
)
from dream.adapters.pytorch.private import is_compiled
from dream.adapters.pytorch.update import batch_norm
from dream.adapters.pytorch.update.auto_recompute import AutoRecompute, MeasuredCall
from dream.adapters.pytorch.update.recompute import How, recompute
from dream.collectives import Communicator
from dream.update.recomputing import AUTO


class Team(ABC):
    """Runs replicas at the same time.

    size: how many. first: the device of what is gathered. meets: whether replicas may wait for one
    another in the middle of a model. copies: whether each is a copy; the first may be the module.
    """

    size: int
    first: torch.device
    meets = copies = False

    @abstractmethod
    def replicas(self, module: nn.Module, count: int) -> list[nn.Module]:
        """Copies whose gradients are the module's own."""

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
    def apply(
        self, functions: Sequence[Callable[..., Any]], parts: Sequence[Any], first: int = 0
    ) -> list[Any]:
        """`functions[i](*parts[i])` in place first + i, all at the same time."""


@final
class DeviceTeam(Team):
    """Replicas that run each on a device of its own."""

    meets = copies = True

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._devices = devices
        self.size, self.first = len(devices), devices[0]

    def replicas(self, module: nn.Module, count: int) -> list[nn.Module]:
        return replicate(module, self._devices[:count])

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

    def apply(
        self, functions: Sequence[Callable[..., Any]], parts: Sequence[Any], first: int = 0
    ) -> list[Any]:
        return parallel_apply(functions, parts, self._devices, first)


@contextmanager
def waiting(
    replicas: Sequence[nn.Module], *, together: bool
) -> Iterator[Callable[..., Callable[..., Any]]]:
    """DeviceTeam whose BatchNorms wait for each other, where they are to and there are any."""
    if together and len(replicas) > 1 and normalises(replicas[0]):
        with meeting(replicas) as watched:
            yield watched
    else:
        yield lambda call: call


_told = ModuleSet()


def tell_of_statistics(module: nn.Module) -> None:
    """Once for each module that is trained in parts."""
    if torch.is_grad_enabled() and module not in _told:
        _told.add(module)
        batch_norm.tell_local_statistics(module)


@final
class RecomputedCopies:
    """Has layers of one strategy's models computed again.

    how: which layers. together: BatchNorm sees all parts of a batch. world, budget, calls: as
    `AutoRecompute` has them.
    """

    def __init__(
        self,
        team: Team,
        how: How,
        world: Communicator,
        *,
        together: bool,
        budget: float | str | None = None,
        calls: int = 1,
    ) -> None:
        self._team, self._how, self._together = team, how, together
        self._world, self._budget, self._calls = world, budget, calls
        self._autos: WeakKeyDictionary[nn.Module, AutoRecompute] = WeakKeyDictionary()

    def take(self, model: nn.Module, copies: Sequence[nn.Module]) -> None:
        """Copies are about to be called, the model itself may be among them."""
        if not (self._how and torch.is_grad_enabled()):
            return
        how = self._chosen(model, copies) if self._how == AUTO else self._how
        opened = self._team.opened(model)
        for copy in copies:
            chosen = recompute(copy, how, _trains, opened=opened, in_threads=True)
            if self._together and len(copies) > 1:
                _refuse_meeting(copy, chosen)

    def _chosen(self, model: nn.Module, copies: Sequence[nn.Module]) -> How:
        """The layers that memory asks for; none while the first copy's calls are measured."""
        if model not in self._autos:
            meeting = normalises if self._together and len(copies) > 1 else lambda _: False
            self._autos[model] = AutoRecompute(
                self._budget, self._world, calls=self._calls, skips=meeting
            )
        auto, first = self._autos[model], copies[0]
        hook = ensure_hook(first)
        hook.inner = unwrapped(hook.inner, (MeasuredCall,))
        if auto.begin(first, lambda: None, lambda: any(map(is_compiled, model.modules()))):
            hook.inner = MeasuredCall(hook.inner, auto, first)
            for part in first.modules():
                ensure_hook(part)
        return auto.names or False


def _trains() -> bool:
    return not called_by_user()


def _refuse_meeting(model: nn.Module, layers: Sequence[nn.Module]) -> None:
    names = {part: name for name, part in model.named_modules()}
    for layer in layers:
        if normalises(layer):
            raise Unsupported(
                "A BatchNorm that sees the whole batch waits for the other copies of its model, "
                "which do not compute it again at the same time. Received: a BatchNorm in layer "
                f"{names[layer]!r} ({type(layer).__name__}), to be recomputed. Name layers without "
                "one, pass sync_batch_norm=False, or use 'mirrored'."
            )
