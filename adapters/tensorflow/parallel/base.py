"""The interface of a strategy on TensorFlow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dream._adapter import Metric, Plan, Step
from dream._errors import Unsupported
from dream._topology import Topology
from dream.adapters.keras.engine import Engine
from dream.collectives import Communicator


class Parallelism(ABC):
    """Built from a plan, before TensorFlow's first op; `TensorFlowAdapter` passes all on to it."""

    topology: Topology
    communicator: Communicator

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @abstractmethod
    def enter(self) -> None:
        """Start of the block: from here on, Keras models and optimizers are distributed."""

    @abstractmethod
    def exit(self) -> None: ...

    @abstractmethod
    def prepare_model(self, model: Any) -> Any:
        """A Keras model, distributed."""

    @abstractmethod
    def prepare_optimizer(self, optimizer: Any) -> Any: ...

    @abstractmethod
    def prepare_data(self, data: Any) -> Any:
        """This rank's share of each of a dataset's global batches."""

    @abstractmethod
    def train_step(
        self,
        model: Any,
        loss: Callable[..., Any],
        optimizer: Any,
        weight: Callable[..., Any] | None,
    ) -> Step: ...

    @abstractmethod
    def evaluate(
        self, model: Any, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]: ...

    @property
    def keras_engine(self) -> Engine:
        """What Keras's models are trained by."""
        raise Unsupported(
            f"Checkpoints under {self.plan.spec.name!r} are not there yet. Received: save or load. "
            "Keep strategy.full_state(model)."
        )

    def weigh(self, loss: Any, count: Any) -> Any:
        raise Unsupported(
            f"Under {self.plan.spec.name!r} dream takes the whole step. Received: weigh, for a "
            "loop of one's own. Use strategy.train_step(model, loss, optimizer, weight=...)."
        )
