"""A module beside ranks of another framework: one sum of all gradients at the end of backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from dream._adapter import Loss, Metric, Plan, Step, Weight
from dream._errors import ConfigurationError
from dream.adapters.pytorch import devices, private
from dream.adapters.pytorch.evaluate import evaluate
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.model_description import model as canonical
from dream.adapters.pytorch.module import DistributedModule, Make, ModuleRegistry
from dream.adapters.pytorch.optimizer import Forward
from dream.adapters.pytorch.parallel.base import Values
from dream.adapters.pytorch.parallel.ddp.parallelism import Synchronous
from dream.adapters.pytorch.parallel.inner_calls import order_of_calls
from dream.adapters.pytorch.train_step import check_scalar
from dream.adapters.pytorch.update import batch_norm
from dream.adapters.pytorch.update.weigh import count_of
from dream.collectives import Communicator
from dream.data.partition import split
from dream.mixed import consistency
from dream.mixed.consistency import Account
from dream.mixed.order import InOrder
from dream.mixed.resync import Resync, Resyncs

_NAN = float("nan")


@final
class Mixed(Synchronous):
    """Replicas in step, some of them in another framework."""

    checkpoints = False
    supports: Mapping[str, Values] | None = {
        "clip_norm": (),
        "clip_value": (),
        "sync_batch_norm": (False,),
    }
    supports_for = "A rank beside ranks of another framework"
    synchronises = False

    def __init__(self, plan: Plan) -> None:
        assert plan.resyncs is not None
        self._resyncs, self._reported = plan.resyncs, ReportedLoss()
        super().__init__(plan)

    def make(self) -> Make:
        return partial(MixedModule, resyncs=self._resyncs, loss=self._reported.last)

    def subscribe(self, hooks: Hooks) -> None:
        super().subscribe(hooks)
        hooks.wrap("backward", self._reported.wrap_backward)

    def forward_backward(self, model: nn.Module, loss: Loss, weight: Weight | None) -> None:
        """The step is its own."""

    def train_step(
        self, model: nn.Module, loss: Loss, optimizer: Optimizer, weight: Weight | None
    ) -> Step:
        root = self.registry.distribute(model)
        assert isinstance(root, MixedModule)

        def step(*batch: Any) -> torch.Tensor:
            inputs, target = split(devices.beside(model, batch))
            optimizer.zero_grad(set_to_none=True)
            count = root.samples(batch) if weight is None else count_of(weight(*batch))
            value = check_scalar(loss(root.call_counted(count, inputs, {}), target))
            with self._reported.said(value):
                value.backward()
            optimizer.step()
            return root.mean_loss

        return step

    def evaluate(
        self, model: nn.Module, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        return evaluate(model, data, metrics, self.dealt, resyncs=self._resyncs)

    def weigh(self, loss: Any, count: float) -> Any:
        """Counts travel with the gradients."""
        for root in self.registry.roots:
            assert isinstance(root, MixedModule)
            root.weigh_by_hand(count)
        return loss


@final
class BackwardSum:
    """Each rank sends its mean loss, gradients and running statistics times the samples that they
    are means over, and that number; the quotient of the sums is the global mean.

    parameters, running: by name. mean_loss: of the last backward, global; nan where a rank's loop
    has not told it.
    """

    def __init__(
        self,
        order: InOrder,
        parameters: Mapping[str, nn.Parameter],
        running: Mapping[str, torch.Tensor],
        communicator: Communicator,
        loss: Callable[[], torch.Tensor | None],
    ) -> None:
        self._order = order
        self._parameters = parameters
        self._running = running
        self._adding = communicator.unchecked()  # the layout has been agreed on
        self._loss = loss
        self.mean_loss = torch.tensor(_NAN)
        self.steps = 0
        self._count: float | None = None
        self._came: dict[str, torch.Tensor] = {}
        self._before: dict[str, torch.Tensor] = {}
        self._arrived: list[str] = []
        self._handles = [h for name, p in parameters.items() for h in self._watched(name, p)]

    def arm(self, count: float) -> None:
        """The next backward is reduced; its means are over so many samples."""
        self._count = count
        self._came.clear()
        self._before.clear()
        self._arrived.clear()

    def recount(self, count: float) -> None:
        """The user says what the loss is the mean over."""
        if self._count is not None:
            self._count = count

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _watched(self, name: str, parameter: nn.Parameter) -> Sequence[RemovableHandle]:
        return (
            parameter.register_hook(partial(self._coming, name, parameter)),
            parameter.register_post_accumulate_grad_hook(partial(self._accumulated, name)),
        )

    def _coming(self, name: str, parameter: nn.Parameter, gradient: torch.Tensor) -> None:
        if self._count is not None:
            self._came[name] = gradient
            if parameter.grad is not None:
                self._before[name] = parameter.grad.clone()

    def _accumulated(self, name: str, _: torch.Tensor) -> None:
        if self._count is None:
            return
        if not self._arrived:
            private.after_backward(self._reduce)
        self._arrived.append(name)

    def _reduce(self) -> None:
        """At the end of backward: what came is made global."""
        count, self._count = self._count, None
        assert count is not None
        gradients = {name: self._came[name] for name in self._arrived}
        with torch.no_grad():
            value, listed, running = self._summed(count, gradients)
        self.mean_loss = value
        self.steps += 1
        for name, mean in self._order.named(listed, self._arrived, "gradient").items():
            self._write(name, mean)
        for name, mean in self._order.named(running, [*self._running], "value").items():
            self._running[name].copy_(mean)

    def _summed(
        self, count: float, gradients: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        """(mean loss, mean gradients, mean running statistics) over all ranks' samples."""
        listed = self._order.listed(gradients, "gradient")
        running = self._order.listed(self._running, "value")
        loss = self._loss()
        value = torch.tensor(_NAN) if loss is None else loss
        sent = [_times(x, count) for x in (value, *listed, *running)]
        *sums, total = self._adding.all_reduce([*sent, torch.tensor(float(count))], "sum")
        means = [x / total.to(x.dtype) if total else x for x in sums]
        cut = 1 + len(listed)
        return means[0], means[1:cut], means[cut:]

    def _write(self, name: str, mean: torch.Tensor) -> None:
        """In place of what backward has accumulated, beside what was there before."""
        gradient = self._parameters[name].grad
        assert gradient is not None
        gradient.copy_(mean)
        if name in self._before:
            gradient.add_(self._before[name])


def _times(x: torch.Tensor, count: float) -> torch.Tensor:
    """Exactly 0 where nothing is counted, whatever x is."""
    return x.detach() * count if count else torch.zeros_like(x)


@final
class MixedModule(DistributedModule):
    """A module in a job whose ranks are of two frameworks.

    resyncs: of the block. loss: what backward starts from.
    """

    def __init__(
        self,
        module: nn.Module,
        registry: ModuleRegistry,
        inner: Forward | None,
        *,
        resyncs: Resyncs,
        loss: Callable[[], torch.Tensor | None],
    ) -> None:
        super().__init__(module, registry, inner)
        self._resyncs = resyncs
        self._loss = loss
        self._made: tuple[BackwardSum, Resync] | None = None
        self._agreed: tuple[bool, ...] = ()
        self._counted = -1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.registry.training_call():
            return self.inner(*args, **kwargs)
        return self.call_counted(self.samples((*args, *kwargs.values())), args, kwargs)

    def call_counted(self, count: float, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A forward pass whose loss will be the mean over `count` things."""
        total, resync = self._ready(args, kwargs)
        if total.steps != self._counted:
            self._counted = total.steps
            resync.before_step()
        total.arm(count)
        share = self.registry.shares.of((*args, *kwargs.values()))
        return self._call(self.inner, args, kwargs, share, empty=count == 0.0)

    @property
    def mean_loss(self) -> torch.Tensor:
        """The global one of the last backward. Shape ()."""
        assert self._made is not None
        return self._made[0].mean_loss

    @property
    def trained(self) -> list[nn.Parameter]:
        return [p for p in self.module.parameters() if p.requires_grad]

    def prepare(self) -> None:
        """The first batch shows in which order layers are called; it is waited for."""

    def weigh_by_hand(self, count: float) -> None:
        """The user says what the loss of the next backward is the mean over: `count` things."""
        if self._made is not None:
            self._made[0].recount(count)

    def release(self) -> None:
        if self._made is not None:
            self._made[0].stop()
            self._made = None
            self.backwards.stop()

    def samples(self, inputs: tuple[Any, ...]) -> float:
        """Count the samples that this rank has of a batch."""
        known = self.registry.shares.count(inputs)
        if known is not None:
            return float(known)
        leaves = private.tree_leaves(inputs)
        sizes = (len(x) for x in leaves if isinstance(x, torch.Tensor) and x.dim())
        return float(next(sizes, 1))

    def _ready(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[BackwardSum, Resync]:
        changing = self._changing()
        if self._made is None:
            self._agreed = changing
            self._made = self._start(args, kwargs)
        if changing != self._agreed:
            raise ConfigurationError(
                "What is trained has changed, and ranks of another framework cannot know. "
                "Received: requires_grad of a parameter, or train() of a normalisation, of "
                f"{type(self.module).__name__} set after the first step. Freeze layers before it, "
                "on every rank."
            )
        return self._made

    def _changing(self) -> tuple[bool, ...]:
        """Tell which parameters and running statistics a step changes."""
        norms = batch_norm.norms(self.module)
        return (
            *(p.requires_grad for p in self.module.parameters()),
            *(norm.training for norm in norms),
        )

    def _start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[BackwardSum, Resync]:
        """Agree with the other ranks, and take rank 0's weights."""
        called = order_of_calls(self.module, self.inner, args, kwargs)
        order = InOrder(canonical.describe(self.module, called), canonical.OPS)
        known = canonical.tensors(self.module)
        parameters = {
            name: value
            for name in order.names
            if isinstance(value := known[name], nn.Parameter) and value.requires_grad
        }
        running = self._running(known, order)
        layout = order.layout(order.names)
        summed = [*order.layout([*parameters]), *order.layout([*running])]
        account = Account("torch", "step", layout, summed, states=None)
        consistency.agree(self.registry.communicator, account)
        self._take_rank_0s(order)
        self.claim()
        self.registry.begin(self.module)
        self.backwards.watch(self.trained[0])
        total = BackwardSum(order, parameters, running, self.registry.communicator, self._loss)
        communicator = self.registry.communicator
        return total, self._resyncs.add(communicator, lambda: self._take_rank_0s(order))

    def _running(self, known: dict[str, torch.Tensor], order: InOrder) -> dict[str, torch.Tensor]:
        """The running statistics that a step changes."""
        changed = {b.data_ptr() for b in batch_norm.running(batch_norm.norms(self.module))}
        return {
            name: known[name].data
            for name in order.names
            if not isinstance(known[name], nn.Parameter) and known[name].data_ptr() in changed
        }

    def _take_rank_0s(self, order: InOrder) -> float:
        """Take rank 0's values; return how far this rank's were from them."""
        known = canonical.tensors(self.module)
        own = {name: known[name].detach() for name in order.names}
        communicator = self.registry.communicator
        mine = order.listed(own, "value")
        first = communicator.broadcast(mine)
        if communicator.rank == 0:
            return 0.0
        drift = max(_apart(a, b) for a, b in zip(mine, first, strict=True))
        for name, value in order.named(first, order.names, "value").items():
            own[name].copy_(value)
        return drift


def _apart(own: torch.Tensor, first: torch.Tensor) -> float:
    """The largest difference of two tensors, in times of the largest value, or of 1."""
    if not own.numel() or not own.is_floating_point():
        return 0.0
    return float((own - first).abs().max() / first.abs().max().clamp(min=1.0))


@final
class ReportedLoss:
    """Notes the scalar that backward starts from."""

    def __init__(self) -> None:
        self._value: torch.Tensor | None = None

    def wrap_backward(self, backward: Callable[..., None]) -> Callable[..., None]:
        """`torch.autograd.backward` that notes where it starts."""

        @wraps(backward)
        def wrapped(tensors: Any, *args: Any, **kwargs: Any) -> None:
            with self.said(tensors):
                backward(tensors, *args, **kwargs)

        return wrapped

    @contextmanager
    def said(self, tensors: Any) -> Iterator[None]:
        """Backward starts inside from these. One number is the loss; anything else is not known
        to be one."""
        alone = isinstance(tensors, (list, tuple)) and len(tensors) == 1
        only = tensors[0] if alone else tensors
        if isinstance(only, torch.Tensor) and only.numel() == 1:
            self._value = only.detach().reshape(())
        try:
            yield
        finally:
            self._value = None

    def last(self) -> torch.Tensor | None:
        """None where a backward pass was not seen to start from a loss."""
        return self._value
