"""`local_sgd`: replicas step alone, and are averaged every few steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dream import _registry
from dream._adapter import Adapter, Metric, Plan, Step
from dream._errors import Unsupported
from dream._topology import Topology
from dream.adapters.pytorch import collectives, devices, evaluation, randomness, saving, state
from dream.adapters.pytorch.data.dealt import dealt_of
from dream.adapters.pytorch.data.loader import Dealer
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.keras.entry import KerasEntry
from dream.adapters.pytorch.patches import Patches
from dream.adapters.pytorch.step import plain_step
from dream.adapters.pytorch.tensors import TorchTensors
from dream.collectives import Communicator, Loop, Members
from dream.update.local_sgd import AveragingSchedule, refuse_weigh, refuse_weight

_KERAS = "dream.adapters.pytorch.keras.local_sgd:open_block"


@final
class AveragedReplicas:
    """The replicas' side of one optimizer, and of the loaders whose passes end alike."""

    def __init__(
        self, communicator: Communicator, shares: Shares, options: Mapping[str, object]
    ) -> None:
        self._communicator, self._shares = communicator, shares
        self._schedule = AveragingSchedule(options, self._average)
        self._optimizer: Optimizer | None = None
        self._started = False

    def watch(self, optimizer: Optimizer) -> None:
        """Average this optimizer's parameters in turn."""
        if self._optimizer is optimizer:
            return
        if self._optimizer is not None:
            raise Unsupported(
                "Replicas are averaged by the steps of one optimizer. Received: a second one. Put "
                "all parameters in groups of one."
            )
        self._optimizer = optimizer
        optimizer.register_step_pre_hook(self._before_step)

    def end_passes(self, loader: Any) -> None:
        """Have the replicas start alike, and be alike again, around each pass over the loader."""
        if dealt_of(loader) is None:
            return
        base, replicas = type(loader), self

        def iterate(self: Any) -> Iterator[Any]:
            inner: Iterator[Any] = base.__iter__(self)
            return replicas._around(inner) if torch.is_grad_enabled() else inner

        body = {"__iter__": iterate, "__module__": base.__module__}
        loader.__class__ = type(base.__name__, (base,), body)

    def _around(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self.start()
            yield batch
        self.settle()

    @torch.no_grad()
    def start(self) -> None:
        """Take rank 0's parameters on every rank, once, before the first batch."""
        if self._started or self._optimizer is None:
            return
        self._started = True
        own = self._parameters()
        for tensor, first in zip(own, self._communicator.broadcast(own), strict=True):
            tensor.copy_(first)
        randomness.offset_by(self._communicator.rank)

    def settle(self) -> None:
        """Make the replicas alike. Every rank calls it."""
        self._schedule.settle()

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if args[1:] or kwargs.get("closure") is not None:
            raise Unsupported(
                "A step with a closure cannot be averaged. Received: step(closure). Use an "
                "optimizer that takes one gradient a step."
            )
        self._weigh()
        self._schedule.before_step()

    def _weigh(self) -> None:
        """Have the gradient count for this rank's share of the global batch; one of no sample is
        nan, and counts for nothing."""
        weight = self._shares.weight(())
        if weight != 1.0:
            for gradient in self._gradients():
                if weight == 0.0:
                    gradient.zero_()
                else:
                    gradient.mul_(weight)

    @torch.no_grad()
    def _average(self, gradients: bool, own: bool) -> None:
        tensors = self._gradients() if gradients else []
        if own:
            tensors += [*self._parameters(), *self._state()]
        if tensors:
            averaged = self._communicator.all_reduce([t.detach() for t in tensors])
            for tensor, mean in zip(tensors, averaged, strict=True):
                tensor.copy_(mean)

    def _parameters(self) -> list[nn.Parameter]:
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        return [parameter for group in groups for parameter in group["params"]]

    def _gradients(self) -> list[torch.Tensor]:
        return [p.grad for p in self._parameters() if p.grad is not None]

    def _state(self) -> list[torch.Tensor]:
        """List the optimizer's tensors; counters are alike anyway."""
        assert self._optimizer is not None
        return [
            value
            for parameter in self._parameters()
            for value in self._optimizer.state.get(parameter, {}).values()
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 0
        ]


@final
class LocalSgd(Adapter):
    """Every rank a replica. Between averages a rank's parameters are its own; they are the same
    on every rank at the end of each pass over a loader."""

    def __init__(self, plan: Plan) -> None:
        self._topology = Topology.of(
            plan.cluster,
            num_replicas=plan.cluster.world_size,
            device=str(devices.choose(plan)),
        )
        self._communicator = _connect(plan)
        self._shares = Shares()
        self._replicas = AveragedReplicas(self._communicator, self._shares, plan.options)
        self._dealer = Dealer(self._communicator, self._shares, plan.seed)
        self._patches = Patches()
        self._keras = KerasEntry(plan, self._communicator, _KERAS)

    @property
    def topology(self) -> Topology:
        return self._topology

    @property
    def communicator(self) -> Communicator:
        return self._communicator

    def enter(self) -> None:
        replace = self._patches.replace
        deals = self._dealer.wrap_init(DataLoader.__init__)
        replace(DataLoader, "__init__", _followed(deals, self._replicas.end_passes))
        saving.enter(replace)
        if self._topology.world_size > 1:
            watched = _followed(Optimizer.__init__, self._replicas.watch)
            replace(Optimizer, "__init__", watched)
        self._keras.enter()

    def exit(self) -> None:
        self._keras.exit()
        self._patches.restore()

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        return tuple(self._prepare(item) for item in objects)

    def _prepare(self, item: Any) -> Any:
        if (prepared := self._keras.prepare(item)) is not None:
            return prepared
        if isinstance(item, DataLoader):
            self._dealer.deal(item)
            self._replicas.end_passes(item)
        elif isinstance(item, Optimizer) and self._topology.world_size > 1:
            self._replicas.watch(item)
        return item

    def train_step(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        optimizer: Optimizer,
        weight: Callable[..., Any] | None,
    ) -> Step:
        if weight is not None:
            refuse_weight()
        if not isinstance(optimizer, Optimizer):
            raise Unsupported(
                "Under 'local_sgd' Keras models on torch train by fit. Received: train_step with "
                f"{type(optimizer).__name__}. Use model.fit, or Keras on TensorFlow."
            )
        self._prepare(optimizer)
        own_step = plain_step(model, loss, optimizer)

        def step(*batch: Any) -> torch.Tensor:
            """Return this rank's own loss: nothing travels between two averages."""
            self._replicas.start()
            value: torch.Tensor = own_step(*batch)
            return value

        return step

    def evaluate(
        self, model: nn.Module, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        self._replicas.settle()
        return evaluation.evaluate(model, data, metrics, self._communicator)

    def weigh(self, loss: Any, count: Any) -> Any:
        refuse_weigh(count)

    def loss_weight(self) -> float:
        return self._shares.weight(())

    def full_state(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        self._replicas.settle()
        return state.whole(model)


def _followed(init: Callable[..., None], then: Callable[[Any], None]) -> Callable[..., None]:
    """Wrap an `__init__` to have something done to what it made."""

    @wraps(init)
    def wrapped(made: Any, *args: Any, **kwargs: Any) -> None:
        init(made, *args, **kwargs)
        then(made)

    return wrapped


def _connect(plan: Plan) -> Communicator:
    members, tensors = Members.all_of(plan.cluster), TorchTensors()
    if plan.cluster.alone:
        return Communicator(Loop(), tensors, members)
    if plan.mixed:
        raise Unsupported(
            "'local_sgd' averages torch's optimizers. Received: ranks of two frameworks. Use "
            "'horovod'."
        )
    collectives.start_group(plan.cluster, plan.reduction)
    wire = _registry.reduction("torch", plan.reduction)(plan.cluster, plan.reduction)
    return Communicator(wire, tensors, members)
