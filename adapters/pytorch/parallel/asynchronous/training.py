"""A worker's training: its optimizer's steps become pushes."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, final

import torch
from torch.optim import Optimizer

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.pytorch import devices
from dream.adapters.pytorch.parallel.asynchronous.held import Held
from dream.adapters.pytorch.parallel.asynchronous.rest import Rest
from dream.adapters.pytorch.parallel.asynchronous.schedules import Schedules
from dream.parameter_server.client import Client
from dream.parameter_server.roles import Roles
from dream.parameter_server.work import Work


@final
class Training:
    """One a worker. The optimizer that the script makes is held from the first batch on.

    loss: what the last backward started from, for the report; weight: what a `train_step` counts.
    """

    def __init__(self, client: Client, roles: Roles, rank: int, *, in_step: bool) -> None:
        self.client = client
        self.work = Work(client, self._load, roles.workers, in_step=in_step)
        self._roles, self._rank = roles, rank
        self._by_hand = not (in_step and roles.workers > 1)
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._kinds: dict[type[Optimizer], type[Optimizer]] = {}
        self._held: Held | None = None
        self.rest = Rest()
        self.schedules = Schedules(self.work)

    def wrap_init(self, init: Callable[..., None]) -> Callable[..., None]:
        """`Optimizer.__init__` that has the optimizer's steps taken over."""

        @wraps(init)
        def wrapped(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            self.take(optimizer)

        return wrapped

    def take(self, optimizer: Optimizer) -> None:
        """From now on the optimizer's steps are the servers'."""
        if any(known() is optimizer for known in self._optimizers):
            return
        kind = type(optimizer)
        if kind not in self._kinds:
            self._kinds[kind] = _taken_class(kind, self)
        optimizer.__dict__.pop("step", None)  # a schedule's wrapper around the class's own
        optimizer.__class__ = self._kinds[kind]
        self._optimizers.append(weakref.ref(optimizer))

    def ready(self) -> None:
        """Before a batch is trained on: the servers know the parameters, and this rank has
        theirs."""
        if self._held is not None:
            return
        made = [o for known in self._optimizers if (o := known()) is not None]
        if len(made) > 1:
            raise Unsupported(
                f"The servers run one optimizer. Received: {len(made)} that were made in the "
                "block. Put all parameters in groups of one."
            )
        if made:
            kind = type(made[0]).__mro__[1]
            self._held = Held(made[0], kind, self.client, self._roles.servers, self.rest)
            devices.offset_by(self._rank)

    def by_hand(self, optimizer: Optimizer) -> None:
        """The loop's own `optimizer.step()`."""
        if not self._by_hand:
            raise Unsupported(
                "With staleness=0 workers share each batch, and a gradient is whole on the servers "
                "only: a loop of one's own could clip or change its part. Received: "
                "optimizer.step(). Use strategy.train_step, or staleness=1 or more."
            )
        self.push(optimizer, float("nan"), None)

    def push(self, optimizer: Optimizer, loss: float, weight: float | None) -> float:
        """A step. The loss of the update, once the worker may go on."""
        held = self._held
        if held is None or held.optimizer is not optimizer:
            raise ConfigurationError(
                "This optimizer came too late for the batch. Received: "
                f"{type(optimizer).__name__}.step() of an optimizer that was not there when the "
                "batch was taken. Make it in the block, before the loop."
            )
        answer = self.work.push(loss, weight, held.settings(), held.gather())
        return answer.loss

    def fetch_state(self, optimizer: Optimizer) -> None:
        """The servers' state into the optimizer, where they have taken it over."""
        if self._held is not None and self._held.optimizer is optimizer:
            self._held.fetch_state()

    def check_not_begun(self, what: str) -> None:
        if self._held is not None:
            raise Unsupported(
                "The servers hold the optimizer's state once training has begun. Received: "
                f"{what}(). Call it before the first batch."
            )

    def refresh(self) -> None:
        """The newest parameters."""
        if self._held is not None and self.client.refresh():
            self._load()

    def _load(self) -> None:
        if self._held is not None:
            with torch.no_grad():
                self._held.load()


def _taken_class(kind: type[Optimizer], training: Training) -> type[Optimizer]:
    """The optimizer's class with a step that pushes."""

    def step(self: Optimizer, closure: Any = None) -> None:
        if closure is not None:
            raise Unsupported(
                "A step with a closure cannot be pushed. Received: "
                f"{kind.__name__}.step(closure). Use an optimizer that takes one gradient a step."
            )
        training.by_hand(self)

    hooked = Optimizer.profile_hook_step(step)
    hooked.hooked = True  # type: ignore[attr-defined]
    hooked._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # steps are counted here

    def state_dict(self: Optimizer) -> dict[str, Any]:
        training.fetch_state(self)
        try:
            return kind.state_dict(self)
        finally:
            self.state.clear()

    def load_state_dict(self: Optimizer, state: dict[str, Any]) -> None:
        training.check_not_begun("load_state_dict")
        kind.load_state_dict(self, state)

    body = {
        "step": hooked,
        "state_dict": state_dict,
        "load_state_dict": load_state_dict,
        "__module__": kind.__module__,
        "_opt_called": True,
    }
    return type(kind.__name__, (kind,), body)
