"""The averages that replicas of `local_sgd` take now and then.

On every k-th step parameters, gradients and the optimizer's tensors are averaged, and the step is
made on what comes out: the replicas are then alike to the bit. With k = 1 parameters and state are
alike already and only gradients travel, so it is what `mirrored` does, whatever the optimizer. For
optimizers that are linear in the gradient (SGD, with momentum too) it is no other than to average
after the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, final

import torch
from torch.optim import Optimizer

from dream._errors import Unsupported
from dream.adapters.pytorch import devices
from dream.adapters.pytorch.data.loader import dealt_of
from dream.adapters.pytorch.data.shares import Shares
from dream.collectives import Communicator


@final
class Averages:
    """every: steps from one average to the next."""

    def __init__(self, communicator: Communicator, shares: Shares, every: int) -> None:
        self._communicator, self._shares, self._every = communicator, shares, every
        self._optimizers: list[Optimizer] = []
        self._steps = 0
        self._started = False
        self._alike = True

    def watch(self, optimizer: Optimizer) -> None:
        """Average this optimizer's parameters in turn."""
        if any(known is optimizer for known in self._optimizers):
            return
        if self._optimizers:
            raise Unsupported(
                "Replicas are averaged by the steps of one optimizer. Received: a second one. Put "
                "all parameters in groups of one."
            )
        self._optimizers.append(optimizer)
        optimizer.register_step_pre_hook(self._before_step)

    def wrap_loader(self, init: Callable[..., None]) -> Callable[..., None]:
        """`DataLoader.__init__` whose passes end alike on all ranks."""

        @wraps(init)
        def wrapped(loader: Any, *args: Any, **kwargs: Any) -> None:
            init(loader, *args, **kwargs)
            self.end_passes(loader)

        return wrapped

    def end_passes(self, loader: Any) -> None:
        """Have the replicas start alike, and be alike again, around each pass over the loader."""
        if dealt_of(loader) is None:
            return
        base, averages = type(loader), self

        def iterate(self: Any) -> Iterator[Any]:
            inner: Iterator[Any] = base.__iter__(self)
            return averages._around(inner) if torch.is_grad_enabled() else inner

        body = {"__iter__": iterate, "__module__": base.__module__}
        loader.__class__ = type(base.__name__, (base,), body)

    def _around(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self.start()
            yield batch
        self.settle()

    @torch.no_grad()
    def start(self) -> None:
        """Rank 0's parameters and state on every rank, once, before the first batch."""
        if self._started or not self._optimizers:
            return
        self._started = True
        own = self._parameters()
        for tensor, first in zip(own, self._communicator.broadcast(own), strict=True):
            tensor.copy_(first)
        devices.offset_by(self._communicator.rank)

    @torch.no_grad()
    def settle(self) -> None:
        """Make the replicas alike. Every rank calls it."""
        if not self._alike:
            self._average([*self._parameters(), *self._state()])
            self._alike = True

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if args[1:] or kwargs.get("closure") is not None:
            raise Unsupported(
                "A step with a closure cannot be averaged. Received: step(closure). Use an "
                "optimizer that takes one gradient a step."
            )
        self._weigh()
        self._steps += 1
        if self._steps % self._every:
            self._alike = False
            return
        gradients = self._gradients()
        apart = [] if self._alike else [*self._parameters(), *self._state()]
        self._average([*gradients, *apart])
        self._alike = True

    def _weigh(self) -> None:
        """The gradient counts for this rank's share of the global batch; one of no sample is nan,
        and counts for nothing."""
        weight = self._shares.weight(())
        if weight != 1.0:
            for parameter in self._parameters():
                if parameter.grad is not None and weight == 0.0:
                    parameter.grad.zero_()
                elif parameter.grad is not None:
                    parameter.grad.mul_(weight)

    def _average(self, tensors: list[torch.Tensor]) -> None:
        averaged = self._communicator.all_reduce([t.detach() for t in tensors])
        for tensor, mean in zip(tensors, averaged, strict=True):
            tensor.copy_(mean)

    def _parameters(self) -> list[torch.nn.Parameter]:
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        return [parameter for group in groups for parameter in group["params"]]

    def _gradients(self) -> list[torch.Tensor]:
        return [p.grad for p in self._parameters() if p.grad is not None]

    def _state(self) -> list[torch.Tensor]:
        """The optimizer's tensors; counters are alike anyway."""
        return [
            value
            for optimizer in self._optimizers
            for parameter in self._parameters()
            for value in optimizer.state.get(parameter, {}).values()
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 0
        ]
