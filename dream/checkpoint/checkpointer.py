"""What a checkpoint is of, and what a framework brings to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, final

from dream._errors import Unsupported
from dream._log import logger
from dream.checkpoint import layers
from dream.checkpoint.content import Arrays, CheckpointContent, OptimizerState, Replicas
from dream.checkpoint.storage.allotment import Wanted, every_array

Named = Mapping[str, Any]
TOGETHER = (
    "the checkpoint is of %d replicas that were apart, each of which goes on by itself under "
    "'local_sgd' on as many ranks; here all go on from what they would have come together to"
)


class Stateful(Protocol):
    """A scheduler, a scaler, or anything else that says where it stands in plain values."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Any, /) -> Any: ...


class Checkpointer(ABC):
    """What one framework's models, optimizers and generators hold, whole, and set again. Every rank
    calls each method; names of several models go before their parameters'. Arrays are copies:
    training goes on while they are written."""

    api: str
    """Whose names parameters have: "torch" or "keras"."""
    writes = True
    """Whether this process writes what is its; not where another has all of it."""

    @abstractmethod
    def model(self, model: Any, wanted: Wanted = every_array) -> Arrays:
        """Return those arrays that are wanted; of what lies in parts, one is whole at a time."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Say how models lie over the ranks and devices, and in which precision they train."""

    @abstractmethod
    def types(self, model: Any) -> dict[str, str]:
        """Return by name the type of each of a model's arrays, as it trains."""

    @abstractmethod
    def check_model(self, model: Any, arrays: Arrays) -> None:
        """Raise where the arrays are of another model; nothing has been written then."""

    @abstractmethod
    def set_model(self, model: Any, arrays: Arrays) -> None: ...

    @abstractmethod
    def describe(self, model: Any) -> layers.Plain:
        """Describe the model's layers, by its parameters' names. DreamError where another framework
        has none such."""

    @abstractmethod
    def optimizer(
        self, optimizer: Any, models: Named, wanted: Wanted = every_array
    ) -> OptimizerState: ...

    @abstractmethod
    def check_optimizer(self, optimizer: Any, models: Named, state: OptimizerState) -> None: ...

    @abstractmethod
    def set_optimizer(self, optimizer: Any, models: Named, state: OptimizerState) -> None: ...

    def count_updates(self, optimizer: Any, updated: Callable[[], None]) -> None:
        """Call `updated` after each step of an optimizer, for as long as it lives."""
        raise Unsupported(
            "Automatic saving counts the updates of torch optimizers only. Received: "
            f"{type(optimizer).__name__}. Pass fit callbacks=[dream.keras.Checkpoint(folder)]."
        )

    def unkept(self, parts: Parts) -> Callable[[], list[str]]:
        """Return what names, when it is called, that which trains on beside these parts, and would
        begin anew where training goes on."""
        del parts
        return list

    def replicas(self, parts: Parts, wanted: Wanted) -> Replicas | None:
        """Return what each rank has of its own; None where all are alike. `model` and `optimizer`
        return the mean then."""
        del parts, wanted
        return None

    def own_of(self, found: CheckpointContent) -> CheckpointContent:
        """Return what this rank goes on from, of a training whose ranks had each its own."""
        if found.replicas is not None and found.replicas.arrays:
            logger.info(TOGETHER, found.replicas.count)
        return found

    def set_replicas(self, found: CheckpointContent, parts: Parts) -> None:  # noqa: B027
        """Go on as a replica that steps alone, where this checkpoint is of as many."""

    @abstractmethod
    def random(self, models: Named) -> dict[str, Any]:
        """Say where the generators stand, those of the models among them."""

    @abstractmethod
    def set_random(self, state: Mapping[str, Any], models: Named) -> None: ...


@final
@dataclass(frozen=True, slots=True)
class Parts:
    """What a checkpoint is of. One of a kind has the name ""."""

    models: Named
    optimizers: Named = field(default_factory=dict)
    schedulers: Mapping[str, Stateful] = field(default_factory=dict)
    data: Any = None

    @classmethod
    def of(cls, model: Any, optimizer: Any, scheduler: Any, data: Any) -> Parts:
        return cls(_named(model), _named(optimizer), _named(scheduler), data)

    @property
    def first_model(self) -> Any:
        """Which says of which framework they are."""
        return next(iter(self.models.values()), None)


def _named(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    return dict(given) if isinstance(given, Mapping) else {"": given}
