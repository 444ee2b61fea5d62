"""The calls of a module that its replicas in one process share, each with its part of a batch."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import cached_property, partial, wraps
from typing import Any, final

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from dream._errors import ConfigurationError, DreamError, Unsupported
from dream._log import logger
from dream._patches import value_set
from dream.adapters.pytorch.call_hook import CallHook, ModuleSet
from dream.adapters.pytorch.data.reading.rows import cut_rows
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.optimizer import Training
from dream.adapters.pytorch.parallel.inner_calls import (
    called_by_user,
    evaluating,
    running_layers,
    without_side_effects,
)
from dream.adapters.pytorch.parallel.replicas.batch_norm import normalises
from dream.adapters.pytorch.parallel.replicas.draws import Functions, PartDraws
from dream.adapters.pytorch.parallel.replicas.outputs import equal, have_rows, misfit
from dream.adapters.pytorch.parallel.replicas.primitives import gather, settle_buffers
from dream.adapters.pytorch.parallel.replicas.traces import Traces, refusal
from dream.adapters.pytorch.parallel.replicas.train import (
    RecomputedCopies,
    Team,
    tell_of_statistics,
    waiting,
)
from dream.adapters.pytorch.parallel.snapshot import Reach, Snapshot
from dream.adapters.pytorch.private import peek_transform, tree_leaves, tree_map, version_of
from dream.adapters.pytorch.randomness.calls import patches
from dream.adapters.pytorch.randomness.current import current
from dream.adapters.pytorch.update.scaling import started
from dream.adapters.pytorch.update.weigh import MicroWeights
from dream.collectives import Communicator

differentiating: ContextVar[bool] = ContextVar("dream.differentiating", default=False)
"""Layers on devices of their own are differentiated by backward passes within one."""


@final
class LoopTracker:
    """Weighs what backward starts from, where batches come in micro-batches. (Models in one
    process share one loss, so there is no need to weigh each one's gradients.)

    called: whether a model was called in training since the last backward. accumulates: whether an
    update has several micro-batches.
    """

    def __init__(self, training: Training, communicator: Communicator, shares: Shares) -> None:
        self._training, self._shares = training, shares
        updates = training.updates
        self._micro = None if updates is None else MicroWeights(communicator, updates)
        self.accumulates = updates is not None
        self._models = ModuleSet()
        self._weight = 1.0
        self.called = False

    @property
    def gathering(self) -> list[nn.Parameter]:
        return [parameter for model in self._models for parameter in model.parameters()]

    def call(
        self,
        model: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The user calls a model. forward: what runs it."""
        if not (self._training.runs_models and torch.is_grad_enabled()):
            return self._training.call_beside(model, forward, args, kwargs)
        self._begin(model, (*args, *kwargs.values()))
        return self._training.call(forward, args, kwargs)

    def weigh(self, loss: Any, count: float) -> Any:
        """The user says what the loss is the mean over; the batch is whole, or in micro-batches."""
        self._weight = 1.0
        return loss if self._micro is None else self._micro.weigh(loss, count)

    def _begin(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        updates, scaling = self._training.updates, self._training.scaling
        self.called = True
        if (precision := self._training.precision) is not None:
            precision.cast(model)
        if scaling is not None:
            scaling.loop_calls()
        if updates is not None:
            share = self._shares.of(inputs)
            updates.begin(share, model)
            self._weight = 1.0 if share is None else share.weight
            if model not in self._models:
                updates.held.watch(p for p in model.parameters() if p.requires_grad)
        self._models.add(model)

    def weighed(self, run: Callable[..., None]) -> Callable[..., None]:
        """`torch.autograd.backward` of what the loop's loss counts for."""

        @wraps(run)
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            within = differentiating.get()
            if not within:
                self.called = False
                if self._weight != 1.0:
                    tensors, grad_tensors = started(tensors, grad_tensors, self._weight)
            with value_set(differentiating, True):
                run(tensors, grad_tensors, *args, **kwargs)

        return backward


Act = Callable[[Any, Any, Any], Any]
_COUPLED = "gives no row for each sample that depends on it alone"


@final
class ReplicatedCalls(CallHook):
    """Takes the calls of a module: the outermost one that is called, and has parameters, runs in
    all places, and its outputs are gathered on the first device.

    The gradient needs no weights then: the loss is taken of all outputs together.
    """

    def __init__(
        self,
        module: nn.Module,
        team: Team,
        followed: LoopTracker,
        recomputing: RecomputedCopies,
        *,
        together: bool,
    ) -> None:
        """together: whether BatchNorm is to see all parts of a batch."""
        super().__init__(module)
        self._team, self._together = team, together
        self._followed, self._recomputing = followed, recomputing
        self._by_sample: bool | None = None  # not known yet

    @cached_property
    def _reach(self) -> Reach:
        return Reach(self.module)

    @cached_property
    def _draws(self) -> PartDraws:
        draws = PartDraws(self.module)
        if draws.drops and self._followed.accumulates:
            logger.info(
                "dropout of %s is drawn for each micro-batch by itself: it is not that of one "
                "device", type(self.module).__name__,
            )  # fmt: skip
        return draws

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        shared = called_by_user() and has_parameters(self.module)
        if not shared or peek_transform() is not None:  # torch.func's tensors have no copies
            return self.inner(*args, **kwargs)
        return self._followed.call(self.module, self.shared, args, kwargs)

    def shared(self, *args: Any, **kwargs: Any) -> Any:
        """The output of all copies, each of which is called on its part."""
        parts = self._parts(args, kwargs)
        outputs = None if parts is None else self._of_copies(parts)
        if outputs is None:
            return self._alone(args, kwargs)
        return gather(outputs, self._team.first)

    def each(
        self, inputs: tuple[Any, ...], target: Any, act: Act, wanted: Callable[[list[Any]], bool]
    ) -> list[Any] | None:
        """What `act(part of the inputs, part of the target, the copy's output)` gives in each
        place. None where one device has the call, or what they give is not `wanted`: all is then as
        if there had been no call."""
        parts = self._parts(inputs, {})
        targets = None if parts is None else self._team.scatter(target)
        if parts is None or targets is None or len(targets) != len(parts) or not self._team.copies:
            return None
        ends = [partial(act, *each) for each in zip(parts, targets, strict=True)]
        return self._of_copies(parts, ends, wanted)

    def _parts(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        """A call's part for each copy; None where one device has it."""
        if self._by_sample is False or _shapeless(self.module):
            return None
        if why := refusal(self.module):
            self._stay(why)
            return None
        try:
            parts = self._team.scatter((args, kwargs))
        except ConfigurationError:
            self._stay("is given tensors that have not a row for each sample")
            return None
        if len(parts) > 1 and self._by_sample is None:
            self._by_sample = self._is_by_sample((args, kwargs))
        return parts if len(parts) > 1 and self._by_sample else None

    def _of_copies(
        self,
        parts: list[Any],
        ends: Functions | None = None,
        wanted: Callable[[list[Any]], bool] = bool,
    ) -> list[Any] | None:
        """What each copy gives. ends: what is to be done with it, in its place. None where the
        whole batch alone can give it, or it is not wanted: the copies are let go of, and all is as
        before."""
        if not self._together:
            tell_of_statistics(self.module)
        before = self._reach.before()
        replicas = self._replicas(parts)
        traces = None if torch.is_inference_mode_enabled() else Traces(replicas)
        outputs, why = self._tried(replicas, parts, ends)
        why = (traces.found() if traces else "") or why
        if why and self.module in replicas:
            raise Unsupported(
                "Copies of a model would each do for a part of the batch what is to be done once. "
                f"Received: {type(self.module).__name__}, which {why}. Use one row of devices, or "
                "'mirrored'."
            )
        why = why or before.changed() or self._undrawn(before)
        if why or not wanted(outputs):
            before.take_back()
            if why:
                self._stay(why)
            return None
        if torch.is_grad_enabled() or normalises(self.module):
            settle_buffers(self.module, replicas)
        return outputs

    def _tried(
        self, replicas: list[nn.Module], parts: list[Any], ends: Functions | None
    ) -> tuple[list[Any], str]:
        """What copies give, and why that is no part each of what the whole batch gives."""
        try:
            outputs = self._apply(replicas, parts, ends)
        except (DreamError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # which a whole batch may give none of
            if self.module in replicas:
                raise
            return [], f"fails on a part of a batch ({type(error).__name__})"
        return outputs, "" if ends is not None else misfit(outputs)

    def _undrawn(self, before: Snapshot) -> str:
        """Why the copies' draws are not those of the whole batch; empty where they are."""
        if self._draws.unknown:
            return "has random draws by an operation that dream does not know"
        if self._meets and before.drew():
            return "draws random numbers, and its BatchNorm sees the whole batch"
        if not patches.stand and before.drew():  # torch's checkpoints would draw others
            return "draws random numbers, after its block"
        return ""

    @property
    def _meets(self) -> bool:
        return self._together and normalises(self.module)

    def _stay(self, why: str) -> None:
        """From now on one device has the calls."""
        self._by_sample = False
        logger.info("%s %s: it runs on one device", type(self.module).__name__, why)

    def _alone(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._recomputing.take(self.module, [self.module])
        current.last = None  # a backward pass draws again what the whole batch drew
        with running_layers():
            return self._team.call(0, self.module, self.module, args, kwargs)

    def _replicas(self, parts: list[Any]) -> list[nn.Module]:
        self._team.expect(self.module, *parts[0])
        replicas = self._team.replicas(self.module, len(parts))
        self._recomputing.take(self.module, replicas)
        return replicas

    def _apply(
        self,
        replicas: list[nn.Module],
        parts: list[Any],
        ends: Functions | None = None,
        draws: PartDraws | None = None,
    ) -> list[Any]:
        call = self._team.call
        calls = [partial(call, index, self.module, copy) for index, copy in enumerate(replicas)]
        if ends is not None:
            calls = [partial(_ended, *pair) for pair in zip(calls, ends, strict=True)]
        with running_layers(), waiting(replicas, together=self._together) as watched:
            functions = [watched(call) for call in calls]
            if self._meets:
                return self._team.apply(functions, parts)
            return (draws or self._draws).apply(self._team.apply, functions, parts)

    def _is_by_sample(self, batch: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
        """Whether parts of a batch give what the whole does, looked at once, on a few rows, and on
        copies, which may take what is first for the batch's. A loss with parameters does not, nor
        what has its samples along another dim than 0, nor what writes to what it is given. It is
        looked at as it is evaluated, and as it trains, where that may be another computation."""
        if self._team.copies:
            batch = cut_rows(batch, 0, 2 * self._team.size)
        before, trains = self._reach.before(), self.module.training
        with torch.no_grad(), without_side_effects(self.module):
            with evaluating(self.module):
                why = self._unlike(batch, self._draws)
            if trains and (self._together or not normalises(self.module)):
                why = why or self._unlike(batch, PartDraws(self.module))
        before.take_back()
        if why:
            self._stay(why)
        return not why

    def _unlike(self, batch: Any, draws: PartDraws) -> str:
        """Why parts of a batch do not give what the whole does, in words that follow the module's
        name; empty where they do."""
        before = self._reach.before()
        given = tree_map(_own, batch)
        versions = _versions(given)
        parts = self._team.scatter(tree_map(_own, batch))
        (one,) = self._replicas([batch])
        try:
            with running_layers():
                whole = self._team.call(0, self.module, one, *given)
            if why := before.changed():
                return why
            if _versions(given) != versions:
                return "writes to what it is given"
            if self._meets and self.module.training and before.drew():
                return ""  # the first call tells that it draws
            before.take_back()
            outputs = self._apply(self._replicas(parts), parts, draws=draws)
        except Exception:  # what fits the whole batch need not fit some of its rows
            return _COUPLED
        if why := misfit(outputs):
            return why
        alike = have_rows(outputs, parts)
        return "" if alike and equal(gather(outputs, self._team.first), whole) else _COUPLED


def _own(x: Any) -> Any:
    return x.detach().clone() if isinstance(x, torch.Tensor) else x


def _versions(batch: Any) -> list[int]:
    tensors = (x for x in tree_leaves(batch) if isinstance(x, torch.Tensor))
    return [version_of(x) for x in tensors if not x.is_inference()]


def _ended(
    call: Callable[..., Any], end: Callable[[Any], Any], args: Any, kwargs: dict[str, Any]
) -> Any:
    return end(call(args, kwargs))


def _shapeless(module: nn.Module) -> bool:
    """Whether a first call has to give the parameters their shapes."""
    return any(isinstance(p, UninitializedParameter) for p in module.parameters())


def has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
