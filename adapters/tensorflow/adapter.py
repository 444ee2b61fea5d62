"""The interface of a strategy on TensorFlow: one file or folder of `parallel/` each."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from dream import stall
from dream._adapter import Adapter, Plan
from dream._errors import ConfigurationError, Unsupported
from dream._topology import Topology
from dream.adapters.keras.checkpoint.checkpointer import KerasCheckpointer
from dream.adapters.keras.engine import Engine
from dream.adapters.tensorflow import private
from dream.checkpoint.checkpointer import Checkpointer
from dream.collectives import Communicator
from dream.update.recomputing import AUTO
from dream.update.update import UpdateOptions


class Parallelism(Adapter):
    """Keras models on TensorFlow. Built from a plan, before TensorFlow's first op."""

    chooses = False
    """Whether it takes `recompute="auto"`."""
    _topology: Topology
    _communicator: Communicator

    def __init__(self, plan: Plan) -> None:
        stall.phases_inside(private.phases())
        stall.called_from(private.calling_files())
        self.plan = plan
        update_options = UpdateOptions.of(plan.options)
        update_options.refuse_fitting(f"{plan.spec.name!r} on TensorFlow")
        if not self.chooses:
            update_options.refuse_choosing(f"{plan.spec.name!r} on TensorFlow")
        if update_options.recompute == AUTO and update_options.memory_budget is None:
            raise ConfigurationError(
                "TensorFlow does not say what memory is free, so the limit for activations must be "
                "given. Received: recompute='auto' without memory_budget. Pass "
                "memory_budget='2GB', or 0.5 for half of what they take."
            )
        if plan.options.get("input") == "sharded" and not self.reads_parts(plan):
            raise Unsupported(
                "Ranks read parts of their own in fit, with one device each. Received: "
                f"input='sharded' for {plan.spec.name!r} with "
                f"devices={plan.devices}{', beside ranks of another framework' * plan.mixed}. "
                "Remove input=, or use 'mirrored' with a rank a device."
            )

    def reads_parts(self, plan: Plan) -> bool:
        """Tell whether each rank can be left to read its own part of what fit trains on."""
        del plan
        return False

    @property
    def topology(self) -> Topology:
        return self._topology

    @property
    def communicator(self) -> Communicator:
        return self._communicator

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        return tuple(self._prepare(item) for item in objects)

    def _prepare(self, item: Any) -> Any:
        made = isinstance(item, (keras.Model, keras.optimizers.Optimizer))
        return self.prepare_made(item) if made else self.prepare_data(item)

    @abstractmethod
    def prepare_made(self, item: Any) -> Any:
        """Return a Keras model or optimizer, distributed."""

    @abstractmethod
    def prepare_data(self, data: Any) -> Any:
        """Return this rank's share of each of a dataset's global batches."""

    @property
    def keras_engine(self) -> Engine:
        """What Keras's models are trained by."""
        raise Unsupported(
            f"Checkpoints under {self.plan.spec.name!r} are not supported yet. Received: save or "
            "load. Save strategy.full_state(model) instead."
        )

    def checkpointer(self, model: Any) -> Checkpointer:
        del model
        return KerasCheckpointer(self.keras_engine)

    def weigh(self, loss: Any, count: Any) -> Any:
        raise Unsupported(
            f"Under {self.plan.spec.name!r} dream runs the whole step. Received: weigh, for a "
            "custom training loop. Use strategy.train_step(model, loss, optimizer, weight=...)."
        )

    def full_state(self, model: Any) -> dict[str, NDArray[Any]]:
        return {v.path: np.asarray(v) for v in model.variables}
