"""`local_sgd`: replicas step alone, and are averaged every few steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dream._adapter import Loss, Metric, Plan, Step, Weight
from dream._errors import Unsupported
from dream.adapters.pytorch import devices, private
from dream.adapters.pytorch.data.loader import dealt_of
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.loss.calls import TrainingCall
from dream.adapters.pytorch.loss.factors import Factor
from dream.adapters.pytorch.loss.scaling import scaled
from dream.adapters.pytorch.loss.terms import terms_of
from dream.adapters.pytorch.parallel.base import Parallelism, Participants, connect
from dream.adapters.pytorch.parallel.ddp.parallelism import Ddp
from dream.adapters.pytorch.train_step import plain_step
from dream.collectives import Communicator
from dream.strategies.options import REPLICAS
from dream.update.local_sgd import AveragingSchedule, Schedule, refuse_weigh, refuse_weight
from dream.update.outer import OuterSteps


@final
class AveragedReplicas:
    """The replicas' side of one optimizer, and of the loaders whose passes end alike."""

    def __init__(
        self, communicator: Communicator, shares: Shares, options: Mapping[str, object]
    ) -> None:
        self.ranks, self._shares = communicator, shares
        self.schedule: Schedule = (
            AveragingSchedule(options, self._average)
            if options["outer_lr"] is None
            else OuterSteps(options, self, lambda: self._average(False, False))
        )
        self._optimizer: Optimizer | None = None
        self._modules: list[weakref.ref[nn.Module]] = []
        self._started = False

    def add(self, module: nn.Module) -> None:
        """Average what this module's forward counts by itself, as BatchNorm's statistics."""
        self._modules.append(weakref.ref(module))

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
        optimizer.register_step_post_hook(lambda *_: self.schedule.after_step())

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
        for tensor, first in zip(own, self.ranks.broadcast(own), strict=True):
            tensor.copy_(first)

    def settle(self) -> None:
        """Make the replicas alike. Every rank calls it."""
        self.schedule.settle()

    @torch.no_grad()
    def together(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what a tensor would be where the replicas came together, which they do not. Every
        rank calls it."""
        if not (self.schedule.apart and tensor.is_floating_point()):
            return tensor
        mean: torch.Tensor = self.ranks.all_reduce(tensor.detach())
        places = {p.data_ptr(): place for place, p in enumerate(self._parameters())}
        place = places.get(tensor.data_ptr())
        settled = mean if place is None else self.schedule.settled(place, mean)
        assert isinstance(settled, torch.Tensor)
        return settled

    def go_on(self, schedule: Mapping[str, Any]) -> None:
        """Take up where a checkpoint's replicas stood, whose states were set."""
        self._started = True
        self.schedule.load(schedule)

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if args[1:] or kwargs.get("closure") is not None:
            raise Unsupported(
                "A step with a closure cannot be averaged. Received: step(closure). Use an "
                "optimizer that takes one gradient a step."
            )
        self._weigh()
        self.schedule.before_step()

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
        tensors = self._gradients() if gradients else self._statistics()
        if own:
            tensors += [*self._parameters(), *self._state()]
        if tensors:
            averaged = self.ranks.all_reduce([t.detach() for t in tensors])
            for tensor, mean in zip(tensors, averaged, strict=True):
                tensor.copy_(mean)

    def shapes(self) -> list[torch.Size]:
        return [parameter.shape for parameter in self._parameters()]

    def copies(self, places: Sequence[int]) -> list[torch.Tensor]:
        own = self._parameters()
        return [own[place].detach().clone() for place in places]

    def means(self, values: list[torch.Tensor]) -> list[torch.Tensor]:
        means: list[torch.Tensor] = self.ranks.all_reduce(values)
        return means

    @torch.no_grad()
    def assign(self, places: Sequence[int], values: list[torch.Tensor]) -> None:
        own = self._parameters()
        private.foreach_copy_([own[place] for place in places], values)

    def _parameters(self) -> list[nn.Parameter]:
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        return [parameter for group in groups for parameter in group["params"]]

    def _gradients(self) -> list[torch.Tensor]:
        return [p.grad for p in self._parameters() if p.grad is not None]

    def _statistics(self) -> list[torch.Tensor]:
        made = (module() for module in self._modules)
        buffers = (
            b for module in made if module is not None for b in module.buffers(recurse=False)
        )
        return [buffer for buffer in buffers if buffer.is_floating_point()]

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
class LocalSgd(Parallelism):
    """Every rank a replica. Between averages a rank's parameters are its own; they are the same
    on every rank at the end of each pass over a loader."""

    keras_block = "dream.adapters.pytorch.keras.local_sgd:open_block"
    keras_steps = False

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._replicas = AveragedReplicas(self.world, self.shares, plan.options)
        if self.world.world_size > 1:
            self.stepping_alone = self._replicas

    def connect(self) -> Participants:
        if self.plan.mixed:
            raise Unsupported(
                "'local_sgd' averages torch's optimizers. Received: ranks of two frameworks. Use "
                "'horovod'."
            )
        device = devices.choose(self.plan)
        return Participants(connect(self.plan)[0], device)

    def subscribe(self, hooks: Hooks) -> None:
        if self.world.world_size > 1:
            hooks.made("module", self._replicas.add)
            hooks.made("optimizer", self.adopt)
            hooks.wrap("backward", self._weighing_sums)

    def _weighing_sums(self, run: Callable[..., None]) -> Callable[..., None]:
        """`torch.autograd.backward`, where a sum over a replica's rows stands for that over the
        global batch, as a mean over them does."""

        @wraps(run)
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            share, one = self.shares.of(()), isinstance(tensors, torch.Tensor)
            if share is None or not share.weight or not one or tensors.grad_fn is None:
                run(tensors, grad_tensors, *args, **kwargs)
                return
            terms = terms_of(tensors, [TrainingCall(None, share, [])])
            times = share.parts / share.weight  # the step weighs all of the gradient
            factors: list[Factor] = [times if term.kind == "sum" else 1.0 for term in terms]
            given, hooks = scaled(tensors, grad_tensors, terms, factors)
            try:
                run(tensors, given, *args, **kwargs)
            finally:
                for hook in hooks:
                    hook.remove()

        return backward

    def follow(self, loader: DataLoader[Any]) -> None:
        self._replicas.end_passes(loader)

    def adopt(self, optimizer: Optimizer) -> None:
        if self.world.world_size > 1:
            self._replicas.watch(optimizer)

    def train_step(
        self, model: nn.Module, loss: Loss, optimizer: Optimizer, weight: Weight | None
    ) -> Step:
        if weight is not None:
            refuse_weight()
        if not isinstance(optimizer, Optimizer):
            raise Unsupported(
                "Under 'local_sgd' Keras models on torch train by fit. Received: train_step with "
                f"{type(optimizer).__name__}. Use model.fit, or Keras on TensorFlow."
            )
        self.adopt(optimizer)
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
        return super().evaluate(model, data, metrics)

    def weigh(self, loss: Any, count: float) -> Any:
        refuse_weigh(count)

    def loss_weight(self) -> float:
        return self.shares.weight(())

    def full_state(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        self._replicas.settle()
        return super().full_state(model)


def local_sgd(plan: Plan) -> Parallelism:
    """Make `local_sgd`. Replicas that come together at each step are those of `mirrored`, which
    knows what a loss is a mean over, and what clips or looks at a gradient."""
    if plan.mixed or plan.options["every"] != 1 or plan.options["outer_lr"] is not None:
        return LocalSgd(plan)
    return Ddp(replace(plan, options={option.name: option.default for option in REPLICAS}))
