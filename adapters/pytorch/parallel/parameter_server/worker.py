"""A worker in torch: its optimizer's steps become pushes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.optim import Optimizer

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.pytorch import devices
from dream.adapters.pytorch.optimizer import parameters_of
from dream.adapters.pytorch.parallel.parameter_server.optimizer import (
    describe,
    settings_of,
    views_of,
)
from dream.adapters.pytorch.tensors import CODEC, dump, load
from dream.parameter_server.optimizer import ServerSharding, pack_optimizer
from dream.parameter_server.worker import Worker, WorkerState, check_untrained, dtype_of

_SHAPELESS = (UninitializedBuffer, UninitializedParameter)


@final
class TorchWorkerState(WorkerState):
    """The optimizer of a script. kind: its class, as the script knows it."""

    def __init__(self, optimizer: Optimizer, kind: type[Optimizer], servers: int) -> None:
        parameters = parameters_of(optimizer)
        names = (str(p.dtype).removeprefix("torch.") for p in parameters)
        dtype = dtype_of(names, "torch.autocast")
        sharding = ServerSharding([p.shape for p in parameters], servers)
        specs = [describe(optimizer, kind, places) for places in sharding.placed]
        values = np.empty(sum(p.numel() for p in parameters), dtype)
        super().__init__(optimizer, sharding, specs, values, np.zeros_like(values))
        self._ordered = [parameters[index] for index in sharding.order]
        shapes = [p.shape for p in self._ordered]
        self._values = views_of(self.values, shapes)
        self._gradients = views_of(self.gradient, shapes)
        torch._foreach_copy_(self._values, [p.detach() for p in self._ordered])

    def load(self, updates: int) -> None:
        torch._foreach_copy_([p.detach() for p in self._ordered], self._values)

    def gather(self) -> bytes:
        """Take the gradients together. Returns a byte for each parameter, 0 where it has none, or
        nothing where every one has."""
        gradients = [parameter.grad for parameter in self._ordered]
        if any(gradient is not None and gradient.is_sparse for gradient in gradients):
            raise Unsupported(
                "Sparse gradients cannot be sent to the servers. Received: a parameter with one. "
                "Use nn.Embedding(sparse=False)."
            )
        pairs = [
            (own, gradient)
            for own, gradient in zip(self._gradients, gradients, strict=True)
            if gradient is not None
        ]
        whole = len(pairs) == len(gradients)
        if not whole:
            self.gradient.fill(0)
        if pairs:
            torch._foreach_copy_([own for own, _ in pairs], [gradient for _, gradient in pairs])
        return b"" if whole else bytes(gradient is not None for gradient in gradients)

    def settings(self) -> bytes:
        if len(parameters_of(self.optimizer)) != len(self._ordered):
            raise Unsupported(
                "The servers hold the parameters that the optimizer began with. Received: a "
                "parameter group added after the first batch. Add it before."
            )
        return pack_optimizer(settings_of(self.optimizer), type(self.optimizer).__name__, CODEC)

    def take_optimizer_state(self, saved: Sequence[bytes]) -> None:
        own = parameters_of(self.optimizer)
        for places, state in zip(self.sharding.placed, saved, strict=True):
            for place, value in load(state).items():
                self.optimizer.state[own[places[place]]] = value


@final
class TorchWorker:
    """A rank that works for the servers. The optimizer that the script makes is held from the first
    batch on."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.untrained = UntrainedTensors()
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._kinds: dict[type[Optimizer], type[Optimizer]] = {}
        self._state: TorchWorkerState | None = None
        self.updated: list[Callable[[], None]] = []
        """Called after each step."""

    def take(self, optimizer: Optimizer) -> None:
        """Have the optimizer's steps be the servers' from now on."""
        if any(known() is optimizer for known in self._optimizers):
            return
        kind = type(optimizer)
        if kind not in self._kinds:
            self._kinds[kind] = _pushing_class(kind, self)
        optimizer.__dict__.pop("step", None)  # a schedule's wrapper around the class's own
        optimizer.__class__ = self._kinds[kind]
        self._optimizers.append(weakref.ref(optimizer))

    def ready(self) -> None:
        """See to it, before a batch is trained on, that the servers know the parameters, and this
        rank has theirs."""
        if self._state is not None:
            return
        made = [o for known in self._optimizers if (o := known()) is not None]
        if len(made) > 1:
            raise Unsupported(
                f"The servers can run only one optimizer. Received: {len(made)} that were made in "
                "the block. Put all parameters in groups of one."
            )
        if made:
            job, held = self.worker.job, parameters_of(made[0])
            state = TorchWorkerState(made[0], type(made[0]).__mro__[1], job.roles.servers)
            self.untrained.load(self.worker.hold(state, self.untrained.save(held)), held)
            self._state = state
            devices.offset_by(job.place.rank)

    def push_own(self, optimizer: Optimizer) -> None:
        """Push the loop's own `optimizer.step()`."""
        if self.worker.shares_batches:
            raise Unsupported(
                "With staleness=0 workers share each batch, and a gradient is whole on the servers "
                "only: a loop of one's own could clip or change its part. Received: "
                "optimizer.step(). Use strategy.train_step, or staleness=1 or more."
            )
        self.push(optimizer, float("nan"), None)

    def push(self, optimizer: Optimizer, loss: float, weight: float | None) -> float:
        """Push a step. The loss of the update, once the worker may go on."""
        if self._state is None or self._state.optimizer is not optimizer:
            raise ConfigurationError(
                "This optimizer was created after the batch was taken. Received: "
                f"{type(optimizer).__name__}.step() of an optimizer that was not there when the "
                "batch was taken. Make it in the block, before the loop."
            )
        mean = self.worker.push(loss, weight, self._state.gather())
        for told in self.updated:
            told()
        return mean

    def check_not_begun(self, what: str) -> None:
        if self._state is not None:
            raise Unsupported(
                "The servers hold the optimizer's state once training has begun. Received: "
                f"{what}(). Call it before the first batch."
            )


@final
class UntrainedTensors:
    """Buffers and frozen parameters, which no optimizer holds, start as rank 0's too: those of the
    modules that the block has seen, in the order these were made."""

    def __init__(self) -> None:
        self._modules: list[weakref.ref[nn.Module]] = []

    def note(self, module: nn.Module) -> None:
        """Note a module that was made in the block."""
        self._modules.append(weakref.ref(module))

    def add(self, model: nn.Module) -> None:
        """Note a module that was made before the block."""
        self._modules.extend(map(weakref.ref, model.modules()))

    def save(self, held: list[nn.Parameter]) -> bytes:
        """Pack all tensors but those that the optimizer holds."""
        return dump(list(self._tensors(held)))

    def load(self, saved: bytes, held: list[nn.Parameter]) -> None:
        """Take rank 0's."""
        told = load(saved)
        own = list(self._tensors(held))
        check_untrained([tuple(t.shape) for t in own], [tuple(t.shape) for t in told])
        with torch.no_grad():
            for tensor, first in zip(own, told, strict=True):
                tensor.copy_(first)

    def _tensors(self, held: list[nn.Parameter]) -> Iterator[torch.Tensor]:
        seen = {id(parameter) for parameter in held}
        for known in self._modules:
            module = known()
            if module is None:
                continue
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                if id(tensor) not in seen and not isinstance(tensor, _SHAPELESS):
                    seen.add(id(tensor))
                    yield tensor


def _pushing_class(kind: type[Optimizer], worker: TorchWorker) -> type[Optimizer]:
    """Make the optimizer's class with a step that pushes."""

    def step(self: Optimizer, closure: Any = None) -> None:
        if closure is not None:
            raise Unsupported(
                "A step with a closure cannot be sent to the servers. Received: "
                f"{kind.__name__}.step(closure). Use an optimizer that takes one gradient a step."
            )
        worker.push_own(self)

    hooked = Optimizer.profile_hook_step(step)
    hooked.hooked = True  # type: ignore[attr-defined]
    hooked._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # steps are counted here

    def state_dict(self: Optimizer) -> dict[str, Any]:
        worker.worker.fetch_optimizer_state(self)
        try:
            return kind.state_dict(self)
        finally:
            self.state.clear()

    def load_state_dict(self: Optimizer, state: dict[str, Any]) -> None:
        worker.check_not_begun("load_state_dict")
        kind.load_state_dict(self, state)

    body = {
        "step": hooked,
        "state_dict": state_dict,
        "load_state_dict": load_state_dict,
        "__module__": kind.__module__,
        "_opt_called": True,
    }
    return type(kind.__name__, (kind,), body)
