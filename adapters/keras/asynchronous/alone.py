"""The steps of `fit` under `local_sgd`: each replica's own, on its share of each batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, final

import numpy as np

from dream._errors import ConfigurationError
from dream.adapters.keras import checks, private
from dream.adapters.keras.asynchronous.averaging import Averages
from dream.adapters.keras.asynchronous.catching import Catching
from dream.adapters.keras.asynchronous.feeds import feed_of
from dream.adapters.keras.asynchronous.machine import Machine
from dream.adapters.keras.consistency import metric_states
from dream.adapters.keras.data.sources import Arrays, Batches
from dream.adapters.keras.engine import Engine
from dream.parameter_server.messages import Lease


@final
class Alone:
    """One a rank."""

    def __init__(
        self, engine: Engine, machine: Machine, averages: Averages, catching: Catching
    ) -> None:
        self.rank = engine.rank
        self._engine, self._machine = engine, machine
        self._averages, self._catching = averages, catching

    def looping(self) -> AbstractContextManager[Any]:
        return self._engine.looping()

    def begin(self, model: Any, source: Arrays | Batches) -> Callable[[Any, int], Any]:
        private.build(model, private.symbolic(self._engine.example(source)))
        checks.check_metrics(model)
        checks.check_losses(model)
        averages = self._averages
        averages.begin(model, model.optimizer)
        self._engine.take_over(model)
        if model.train_function is None:  # kept, as Keras's own is, until the next compile
            model.train_function = self._machine.differentiate(
                self._local(model), averages.order, eager=model.run_eagerly, one_length=False
            )
        differentiate = model.train_function
        logs: Any = {}

        def step(batch: Any, samples: int) -> Any:
            nonlocal logs
            present = b""
            if samples:
                tensors = self._machine.tensors(batch)
                logs, present = differentiate((tensors,), averages.gradient)
            averages.step(float(samples), present)
            return logs

        return step

    def batches(self, source: Arrays | Batches, epoch: int) -> Iterator[tuple[Any, int]]:
        feed = feed_of(source)
        parts = self._engine.parts
        try:
            for index in range(feed.epoch.batches):
                yield feed.batch(Lease((0, epoch), index, index, self.rank, parts))
        finally:
            feed.close()

    def refresh(self, model: Any) -> None:
        self._averages.settle()

    def end_epoch(self, model: Any) -> None:
        """The replicas alike, and the figures of all of them."""
        self._averages.settle()
        states = metric_states(model)
        if states and self._engine.parts > 1:
            values = [np.array(v) for v in states]
            sums = self._engine.communicator.all_reduce(values, "sum")
            for variable, total in zip(states, sums, strict=True):
                variable.assign(total)

    def told(self, model: Any) -> None:
        if self._engine.parts > 1:
            wishes = self._engine.communicator.all_gather_object(bool(model.stop_training))
            model.stop_training = any(wishes)

    def finish(self, model: Any) -> None:
        model.optimizer.finalize_variable_values(model.trainable_variables)
        if self._engine.parts > 1:
            self._engine.communicator.barrier()  # what rank 0 wrote is there for all to read

    def _local(self, model: Any) -> Callable[[Any], tuple[Any, list[Any]]]:
        def local(batch: Any) -> tuple[Any, list[Any]]:
            with self._catching.gradients(self._averages.order) as gradients:
                logs = type(model).train_step(model, batch)
            return logs, gradients

        return local


def by_hand(optimizer: Any) -> ConfigurationError:
    """For an optimizer that is applied outside of dream's steps."""
    return ConfigurationError(
        "Replicas are averaged in dream's steps. Received: "
        f"{type(optimizer).__name__}.apply outside one. Use model.fit, or in TensorFlow take the "
        "step by strategy.train_step(model, loss, optimizer)."
    )
