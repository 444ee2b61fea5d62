"""Micro-batches of an update: where a loop is, and what waits for the last of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, final
from weakref import WeakSet

import torch
from torch import nn
from torch.optim import Optimizer

from dream._errors import ConfigurationError, Unsupported
from dream._log import logger
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.private import to_local
from dream.adapters.pytorch.update.gradients import GradientGuard
from dream.data.partition import Share


@final
class Updates:
    """Follows forward passes, batch by batch.

    most: micro-batches to an update. number: of the update. held: what waits for its end.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.number = 0
        self.held = GradientGuard()
        self._share: Share | None = None
        self._gates: WeakSet[Gate] = WeakSet()
        self._cut_by_step = self._said = False

    def gate(self, optimizer: Optimizer) -> Gate:
        """Make what an optimizer's steps pass through."""
        gate = Gate(self, optimizer)
        self._gates.add(gate)
        return gate

    def micros(self) -> int:
        """Micro-batches that a loader cuts a share into, at most."""
        return 1 if self._cut_by_step else self.most

    def leave_to_step(self) -> None:
        """An explicit step was made, which takes whole shares and cuts them itself."""
        self._cut_by_step = True

    def begin(self, share: Share | None, module: nn.Module) -> bool:
        """A forward pass on a loader's micro-batch, or on what a loop made of it (None). Whether
        the gradient is complete with it."""
        at = self._share
        if at is not None and (share is None or share is at) and not self._said:
            self._tell_of_steps(module, at)
        if share is None:
            return self._share is None or self._share.last
        if share is not self._share:
            if share.micro == 0:
                self._start()
            else:
                self._check_follows(share)
                self.held.check()
            self._share = share
        return share.last

    def _tell_of_steps(self, module: nn.Module, share: Share) -> None:
        """Say, once, that a model is called whose step on this micro-batch waits."""
        for gate in self._gates:
            if gate.waits_at(self.number, share.micro) and gate.steps(module):
                self._said = True
                logger.info(
                    "a model is called after its %s.step on the same batch, which waits for the "
                    "last micro-batch of accumulate=%d: the others see it as it was before, which "
                    "one device would not. Step all optimizers at the end of a batch, or remove "
                    "accumulate=",
                    gate.name, self.most,
                )  # fmt: skip
                return

    def begin_whole(self) -> None:
        """An explicit step, which is an update by itself."""
        self._start()
        self._share = Share(0, 0, 1)

    @property
    def share(self) -> Share:
        """The micro-batch that the last forward pass was on."""
        if self._share is None:
            raise Unsupported(
                "Only batches from dream's loaders are split into micro-batches. Received: "
                f"accumulate={self.most} and a step on data of another source. Use batches from a "
                "DataLoader made in the block, or use strategy.train_step."
            )
        return self._share

    @property
    def waiting(self) -> bool:
        """Whether the gradient of the last forward pass is not complete."""
        return self._share is not None and not self._share.last

    @property
    def open(self) -> bool:
        """Whether an optimizer holds an incomplete gradient."""
        return any(gate.open for gate in self._gates)

    def _start(self) -> None:
        self.number += 1
        self.held.clear()
        dropped = [gate for gate in self._gates if gate.open]
        for gate in dropped:
            gate.drop()
        if dropped:
            logger.info("an update ended before its last micro-batch: its gradients were dropped")

    def _check_follows(self, share: Share) -> None:
        last = self._share
        if last is None or (last.micro + 1, last.micros) != (share.micro, share.micros):
            at = "none" if last is None else f"{last.micro + 1} of {last.micros}"
            raise ConfigurationError(
                "The micro-batches of an update come in order, each once. Received: "
                f"micro-batch {share.micro + 1} of {share.micros} after {at}. Use batches as the "
                "loader yields them."
            )


@final
class Gate:
    """Lets those steps of one optimizer pass that are made.

    open: its gradient is of some of an update's micro-batches.
    """

    def __init__(self, updates: Updates, optimizer: Optimizer) -> None:
        self._updates = updates
        self._optimizer = optimizer
        self._at: tuple[int, int] = (0, 0)  # update, micro-batch
        self.open = False

    def passes(self) -> bool:
        """A step is called. Whether it is that of the update."""
        share, number = self._updates.share, self._updates.number
        before = (number, share.micro - 1)
        if self._at != before and (share.micro or self._at == (number, 0)):
            raise ConfigurationError(
                "An optimizer steps once for each micro-batch; it acts on the last of an update. "
                f"Received: {type(self._optimizer).__name__}.step at micro-batch {share.micro + 1} "
                f"of {share.micros}, after a step at {self._at[1] + 1} of update {self._at[0]}, "
                f"now {number}. Call step after each backward, on a new batch each time; remove "
                "accumulate where the loop accumulates by itself."
            )
        self._at = number, share.micro
        self.open = not share.last
        return share.last

    @property
    def name(self) -> str:
        return type(self._optimizer).__name__

    def waits_at(self, number: int, micro: int) -> bool:
        """Whether it was called at this micro-batch of this update, and is yet to step."""
        return self.open and self._at == (number, micro)

    def steps(self, module: nn.Module) -> bool:
        """Whether it is given any of a module's parameters."""
        own = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
        return any(id(p) in own for p in module.parameters())

    def drop(self) -> None:
        """Forget the gradient of an update that was left."""
        self.open = False
        type(self._optimizer).zero_grad(self._optimizer)


GateOf = Callable[[Optimizer], Gate | None]


def subscribe(hooks: Hooks, updates: Updates, gate_of: GateOf) -> None:
    """Have done once an update what a loop does at each micro-batch: schedulers step, modules are
    cleared, gradients clipped."""
    hooks.made("scheduler", lambda scheduler: _gate_scheduler(scheduler, gate_of))
    hooks.wrap("zero_grad", lambda clear: _wrap_zero_grad(clear, updates))
    hooks.wrap("clip_norm", lambda clip: _wrap_clip_norm(clip, updates))
    hooks.wrap("clip_value", lambda clip: _wrap_clip_value(clip, updates))


def refuse_scaler(scaler: torch.amp.GradScaler) -> None:
    """Torch's own loss scale would be undone too early, or twice."""
    if scaler.is_enabled():
        raise Unsupported(
            "A scaler unscales the gradient at each step, and under accumulate= that is not "
            "complete yet; precision='float16' scales by itself. Received: "
            f"{type(scaler).__name__} in the block. Remove it."
        )


def _gate_scheduler(scheduler: Any, gate_of: GateOf) -> None:
    if not isinstance(scheduler, _Gated):
        scheduler.__class__ = _gated_class(type(scheduler), gate_of)


class _Gated:
    """Marks a scheduler's class that is made here."""


def _gated_class(base: type[Any], gate_of: GateOf) -> type[Any]:
    """The scheduler's class, whose `step` acts where its optimizer's did. On the class, since a
    scheduler's state is all that is on the instance."""

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        gate = gate_of(self.optimizer)
        return None if gate is not None and gate.open else base.step(self, *args, **kwargs)

    body = {"step": step, "__module__": base.__module__, "__qualname__": base.__qualname__}
    return type(base.__name__, (base, _Gated), body)


def _wrap_zero_grad(clear: Callable[..., None], updates: Updates) -> Callable[..., None]:
    @wraps(clear)
    def wrapped(module: nn.Module, set_to_none: bool = True) -> None:
        if not updates.open:
            clear(module, set_to_none)

    return wrapped


def _wrap_clip_norm(
    clip: Callable[..., torch.Tensor], updates: Updates
) -> Callable[..., torch.Tensor]:
    """`clip_grad_norm_` that waits for the whole gradient; until then it tells the norm."""

    @wraps(clip)
    def wrapped(
        parameters: Any, max_norm: float, norm_type: float = 2.0, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        if not updates.waiting:
            return clip(parameters, max_norm, norm_type, *args, **kwargs)
        listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        gradients = [to_local(p.grad) for p in listed if p.grad is not None]
        return nn.utils.get_total_norm(gradients, norm_type)

    return wrapped


def _wrap_clip_value(clip: Callable[..., None], updates: Updates) -> Callable[..., None]:
    @wraps(clip)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        if not updates.waiting:
            clip(*args, **kwargs)

    return wrapped
