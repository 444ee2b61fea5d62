"""A worker's training: what its model's optimizer is given becomes a push."""

from __future__ import annotations

from types import MethodType
from typing import Any, final

import keras

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.keras import consistency, private
from dream.adapters.keras.asynchronous.catching import Catching
from dream.adapters.keras.asynchronous.held import Held
from dream.adapters.keras.asynchronous.machine import Machine
from dream.parameter_server.client import Client
from dream.parameter_server.roles import Roles
from dream.parameter_server.work import Work


@final
class Training:
    """One a worker. A model and its optimizer are held from the first batch on.

    shared: whether workers share each batch.
    """

    def __init__(
        self, client: Client, roles: Roles, rank: int, machine: Machine, *, in_step: bool
    ) -> None:
        self.client, self.machine, self.rank = client, machine, rank
        self.catching = Catching(_by_hand)
        self.work = Work(client, self._load, roles.workers, in_step=in_step)
        self.shared = in_step and roles.workers > 1
        self._servers = roles.servers
        self._held: Held | None = None
        self._loaders = 0

    def next_loader(self) -> int:
        """A number for a source of batches, the same on every worker."""
        self._loaders += 1
        return self._loaders - 1

    def take(self, optimizer: Any) -> Any:
        """The optimizer, whose `apply` from now on is the servers'."""
        if "save_own_variables" in vars(optimizer):
            return optimizer
        training = self

        def save_own_variables(self: Any, store: Any) -> None:
            training.fetch_state(self)
            type(self).save_own_variables(self, store)

        optimizer.save_own_variables = MethodType(save_own_variables, optimizer)
        return self.catching.take(optimizer)

    def ready(self, model: Any, optimizer: Any) -> Held:
        """Before a batch is trained on: the servers know the parameters, and this rank has
        theirs."""
        held = self._held
        if held is None:
            self.take(optimizer)
            held = Held(model, optimizer, self.client, self._servers, self.machine)
            self._held = held
            self._offset_seeds(model)
            if self.shared:
                consistency.report_local_statistics(model)
        if held.model is not model or held.optimizer is not optimizer:
            raise Unsupported(
                "The servers run one optimizer over one model. Received: another one, "
                f"{type(optimizer).__name__} over {model.name!r}. Train one model in a job."
            )
        return held

    def push(self, held: Held, loss: float, weight: float | None, present: bytes) -> float:
        """A step, whose gradient is in the client's `gradient`. The loss of the update, once the
        worker may go on."""
        return self.work.push(loss, weight, held.settings(), held.masks(present)).loss

    def fetch_state(self, optimizer: Any) -> None:
        """The servers' state into the optimizer, where they have taken it over."""
        if self._held is not None and self._held.optimizer is optimizer:
            self._held.fetch_state()

    def refresh(self) -> None:
        """The newest parameters."""
        if self._held is not None and self.client.refresh():
            self._load()

    def _load(self) -> None:
        if self._held is not None:
            self._held.load()

    def _offset_seeds(self, model: Any) -> None:
        """Other workers draw other masks: seed generators move by the rank, rank 0's stay."""
        if not self.rank:
            return
        generators = [g for layer in private.layers_of(model) for g in private.own_seeds(layer)]
        for state in {id(g): g.state for g in (*generators, private.shared_seed()) if g}.values():
            state.assign(state + keras.ops.convert_to_tensor([self.rank, 0], state.dtype))
        self.machine.offset_generators(self.rank)


def _by_hand(optimizer: Any) -> ConfigurationError:
    return ConfigurationError(
        "The servers run the optimizer, and do not know what this gradient is of. Received: "
        f"{type(optimizer).__name__}.apply outside a dream step. Take the step by "
        "strategy.train_step(model, loss, optimizer), or use model.fit."
    )
