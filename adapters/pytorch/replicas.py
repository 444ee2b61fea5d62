"""Replicas of a module in one process, each with its part of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, final
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.utils._pytree import tree_leaves

from dream._log import logger
from dream.adapters.pytorch import buffers
from dream.adapters.pytorch.copies import add_gradients, copy_of, leaf, settle_buffers
from dream.adapters.pytorch.data_parallel import (
    Devices,
    gather,
    parallel_apply,
    replicate,
    rows_of,
    scatter,
)
from dream.adapters.pytorch.followed import Followed
from dream.adapters.pytorch.knobs.precision import Precision
from dream.adapters.pytorch.meeting import meeting, normalises
from dream.adapters.pytorch.slot import Slot, set_slot
from dream.adapters.pytorch.split.inside import called_by_hand, inside
from dream.adapters.pytorch.split.traceless import evaluating, traceless
from dream.adapters.pytorch.step import check_scalar

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
        return copy_of(scored, leaf(self._devices[index])) if index else scored

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


@final
class Parallel(Slot):
    """Takes the calls of a module: the outermost one that is called, and has parameters, runs in
    all places, and its outputs are gathered on the first device.

    The gradient needs no weights then: the loss is taken of all outputs together.
    """

    def __init__(
        self, module: nn.Module, team: Team, followed: Followed, *, together: bool
    ) -> None:
        """together: whether BatchNorm is to see all parts of a batch."""
        super().__init__(module)
        self._team, self._together = team, together
        self._followed = followed
        self._by_sample: bool | None = None  # not known yet

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not (called_by_hand() and has_parameters(self.module)):
            return self.inner(*args, **kwargs)
        return self._followed.call(self.module, self._run, args, kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if self._by_sample is False or _shapeless(self.module):
            return self._alone(args, kwargs)
        parts = self._team.scatter((args, kwargs))
        if len(parts) > 1 and self._by_sample is None:
            self._by_sample = self._is_by_sample(args, kwargs, parts)
        if len(parts) == 1 or not self._by_sample:
            return self._alone(args, kwargs)
        if not self._together:
            tell_of_statistics(self.module)
        replicas, outputs = self._apply(parts)
        if torch.is_grad_enabled():
            settle_buffers(self.module, replicas)
        return gather(outputs, self._team.first)

    def _alone(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with inside():
            return self._team.call(0, self.module, self.module, args, kwargs)

    def _apply(self, parts: list[Any]) -> tuple[list[nn.Module], list[Any]]:
        self._team.expect(self.module, *parts[0])
        replicas = self._team.replicas(self.module, len(parts))
        call = self._team.call
        calls = [partial(call, index, self.module, copy) for index, copy in enumerate(replicas)]
        with inside(), _waiting(replicas, together=self._together) as watched:
            return replicas, self._team.apply([watched(call) for call in calls], parts)

    def _is_by_sample(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], parts: list[Any]
    ) -> bool:
        """Whether parts of a batch give what the whole does, looked at once. A loss with
        parameters does not, nor what has its samples along another dim than 0."""
        with torch.no_grad(), traceless(self.module), evaluating(self.module):
            _, outputs = self._apply(parts)
            whole = self._alone(args, kwargs)
        alike = _has_rows(outputs, parts) and _equal(gather(outputs, self._team.first), whole)
        if not alike:
            logger.info(
                "%s gives no row for each sample that hangs on it alone, so it runs on one device",
                type(self.module).__name__,
            )
        return alike


_told: WeakSet[nn.Module] = WeakSet()


def tell_of_statistics(module: nn.Module) -> None:
    """Once for each module that is trained in parts."""
    if torch.is_grad_enabled() and module not in _told:
        _told.add(module)
        buffers.tell_local_statistics(module)


def _shapeless(module: nn.Module) -> bool:
    """Whether a first call has to give the parameters their shapes."""
    return any(isinstance(p, UninitializedParameter) for p in module.parameters())


def has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


@contextmanager
def _waiting(
    replicas: Sequence[nn.Module], *, together: bool
) -> Iterator[Callable[..., Callable[..., Any]]]:
    """Replicas whose BatchNorms wait for each other, where they are to and there are any."""
    if together and len(replicas) > 1 and normalises(replicas[0]):
        with meeting(replicas) as watched:
            yield watched
    else:
        yield lambda call: call


def train(
    team: Team,
    model: nn.Module,
    loss: Loss,
    parts: list[Any],
    counts: list[float],
    weight: float = 1.0,
    scale: float = 1.0,
    precision: Precision | None = None,
    *,
    together: bool = False,
) -> torch.Tensor:
    """The gradients of the mean loss over all parts, in the model's own parameters; that loss.

    parts: (inputs, target) for each place. counts: how many things each part's loss is the mean
    over. weight: what the mean counts for. scale: what gradients are larger by, and the loss that
    is told is not. precision: what the model is called in. The loss is computed and differentiated
    in each place; only numbers are gathered.
    """
    team.expect(model, parts[0][0], {})
    whole = Scored(model, loss)
    meets = together and len(counts) > 1 and normalises(model)
    if len(counts) > 1 and not together:
        tell_of_statistics(model)
    replicas: list[Scored] = []
    acts: list[Callable[..., torch.Tensor]] = []
    for index, count in enumerate(counts):
        if count > 0.0 or meets:
            replica = team.leaves(whole, index)
            call = partial(team.call, index, model)
            counts_for = weight * count / (sum(counts) or 1.0)
            act = partial(_valued, call, replica, counts_for, precision)
            acts.append(act if meets else partial(_differentiated, act, scale))
            replicas.append(replica)
        else:
            acts.append(_nothing)
    with inside(), _waiting(replicas, together=meets) as watched:
        values = team.apply([watched(act) for act in acts], parts)
    if meets:  # what one replica is normalised by hangs on all
        torch.autograd.backward([value * scale for value in values if value.requires_grad])
    add_gradients(whole, replicas)
    if replicas:
        settle_buffers(whole, replicas)
    total: torch.Tensor = gather([value.detach() for value in values], team.first).sum()
    return total


def _valued(
    call: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any],
    replica: Scored,
    weight: float,
    precision: Precision | None,
    inputs: tuple[Any, ...],
    target: Any,
) -> torch.Tensor:
    """A part's loss, times what it counts for."""

    def forward(*inputs: Any) -> Any:
        return call(replica.model, inputs, {})

    output = forward(*inputs) if precision is None else precision.call(forward, inputs, {})
    if not weight:  # a mean over nothing; but others are normalised by what went through
        return torch.zeros(())
    return check_scalar(replica.loss(output, target)) * weight


def _differentiated(valued: Callable[..., torch.Tensor], scale: float, *part: Any) -> torch.Tensor:
    value = valued(*part)
    (value if scale == 1.0 else value * scale).backward()
    return value.detach()


def _nothing(inputs: tuple[Any, ...], target: Any) -> torch.Tensor:
    """Of a part whose loss is a mean over nothing."""
    del inputs, target
    return torch.zeros(())


def _has_rows(outputs: list[Any], parts: list[Any]) -> bool:
    return all(
        x.dim() > 0 and len(x) == rows_of(part)
        for output, part in zip(outputs, parts, strict=True)
        for x in tree_leaves(output)
        if isinstance(x, torch.Tensor)
    )


def _equal(gathered: Any, whole: Any) -> bool:
    """Alike but for rounding."""
    pairs = zip(tree_leaves(gathered), tree_leaves(whole), strict=True)
    return all(
        x.shape == y.shape
        and torch.allclose(x, y, rtol=max(1e-3, _eps(x)), atol=max(1e-5, _eps(x)), equal_nan=True)
        for x, y in pairs
        if isinstance(x, torch.Tensor)
    )


def _eps(x: torch.Tensor) -> float:
    return 8 * torch.finfo(x.dtype).eps if x.is_floating_point() else 0.0
