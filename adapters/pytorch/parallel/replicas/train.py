"""A batch whose parts are trained on at the same time, by a team of replicas."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, final

import torch
from torch import nn

from dream._errors import Unsupported
from dream.adapters.pytorch.call_hook import ModuleSet, set_hook
from dream.adapters.pytorch.data.shares import rows_of
from dream.adapters.pytorch.optimizer import Training
from dream.adapters.pytorch.parallel.inner_calls import called_by_user, running_layers
from dream.adapters.pytorch.parallel.replicas.batch_norm import meeting, normalises
from dream.adapters.pytorch.parallel.replicas.primitives import (
    Devices,
    add_gradients,
    copy_of,
    gather,
    leaf,
    on,
    parallel_apply,
    replicate,
    scatter,
    settle_buffers,
)
from dream.adapters.pytorch.train_step import Batch, Passes, check_scalar
from dream.adapters.pytorch.update import batch_norm
from dream.adapters.pytorch.update.recompute import How, recompute
from dream.adapters.pytorch.update.weigh import count_of
from dream.data.partition import split

Loss = Callable[[Any, Any], Any]


@final
class Scored(nn.Module):
    """A model and its loss, which may have parameters too."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        set_hook(self, None)
        self.model, self.loss = model, loss


class Team(ABC):
    """Runs replicas at the same time.

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
class DeviceTeam(Team):
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

    how: which layers. together: BatchNorm sees all parts of a batch.
    """

    def __init__(self, team: Team, how: How, *, together: bool) -> None:
        self._team, self._how, self._together = team, how, together

    def take(self, model: nn.Module, copies: Sequence[nn.Module]) -> None:
        """Copies are about to be called, the model itself may be among them."""
        if not (self._how and torch.is_grad_enabled()):
            return
        opened = self._team.opened(model)
        for copy in copies:
            chosen = recompute(copy, self._how, _trains, opened=opened, in_threads=True)
            if self._together and len(copies) > 1:
                _refuse_meeting(copy, chosen)


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
                "one, say sync_batch_norm=False, or use 'mirrored'."
            )


@final
class OnEach(Passes):
    """A part of a micro-batch on each device. The loss is computed and differentiated in each
    place; only numbers are gathered."""

    def __init__(
        self,
        team: Team,
        model: nn.Module,
        loss: Loss,
        weight: Callable[..., Any] | None,
        training: Training,
        recomputing: RecomputedCopies,
        *,
        together: bool,
    ) -> None:
        """weight: counts the things that a loss is the mean over. together: whether BatchNorm is
        to see all parts."""
        self._team, self._model, self._loss = team, model, loss
        self._weight, self._together = weight, together
        self._training, self._scaling = training, training.scaling
        self._recomputing = recomputing
        self._value = torch.zeros(())

    def run(self, batch: Batch, weight: float, *, first: bool, last: bool) -> None:
        parts = self._team.scatter(split(batch))
        with nullcontext() if self._scaling is None else self._scaling.scaled():
            value = self._train(parts, [_count(part, self._weight) for part in parts], weight)
        self._value = value if first else self._value + value

    def told(self) -> torch.Tensor:
        return self._value

    def _train(self, parts: list[Any], counts: list[float], weight: float) -> torch.Tensor:
        """The gradients of the mean loss over all parts, in the model's own parameters; that loss.

        parts: (inputs, target) for each place. counts: how many things each part's loss is the
        mean over. weight: what the mean counts for.
        """
        model, team = self._model, self._team
        scale = 1.0 if self._scaling is None else self._scaling.own
        if self._training.precision is not None:
            self._training.precision.cast(model)
        team.expect(model, parts[0][0], {})
        whole = Scored(model, self._loss)
        meets = self._together and len(counts) > 1 and normalises(model)
        if len(counts) > 1 and not self._together:
            tell_of_statistics(model)
        replicas: list[Scored] = []
        acts: list[Callable[..., torch.Tensor]] = []
        for index, count in enumerate(counts):
            if count > 0.0 or meets:
                replica = team.leaves(whole, index)
                call = partial(team.call, index, model)
                counts_for = weight * count / (sum(counts) or 1.0)
                act = partial(_valued, call, replica, counts_for, self._training)
                acts.append(act if meets else partial(_differentiated, act, scale))
                replicas.append(replica)
            else:
                acts.append(_nothing)
        self._recomputing.take(model, [replica.model for replica in replicas])
        with running_layers(), waiting(replicas, together=meets) as watched:
            values = team.apply([watched(act) for act in acts], parts)
        if meets:  # what one replica is normalised by depends on all
            torch.autograd.backward([value * scale for value in values if value.requires_grad])
        add_gradients(whole, replicas)
        if replicas:
            settle_buffers(whole, replicas)
        total: torch.Tensor = gather([value.detach() for value in values], team.first).sum()
        return total


def _count(part: Any, weight: Callable[..., Any] | None) -> float:
    """Count the things that the loss of a part is the mean over."""
    inputs, target = part
    if weight is not None:
        return count_of(weight(*inputs, target))
    return float(rows_of(part) or 1)


def _valued(
    call: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any],
    replica: Scored,
    weight: float,
    training: Training,
    inputs: tuple[Any, ...],
    target: Any,
) -> torch.Tensor:
    """A part's loss, times what it counts for."""

    def forward(*inputs: Any) -> Any:
        return call(replica.model, inputs, {})

    output = training.call(forward, inputs, {})
    if not weight:  # a mean over nothing; but others are normalised by what went through
        return torch.zeros(())
    return check_scalar(replica.loss(output, target)) * weight


def _differentiated(valued: Callable[..., torch.Tensor], scale: float, *part: Any) -> torch.Tensor:
    value = valued(*part)
    (value if scale == 1.0 else value * scale).backward()
    return value.detach()


def _nothing(inputs: tuple[Any, ...], target: Any) -> torch.Tensor:
    """Stand for a part whose loss is a mean over nothing."""
    del inputs, target
    return torch.zeros(())
