"""`local_sgd` in Keras: each replica steps on its share of each batch, and all are averaged now and
then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, final

import keras
import numpy as np
from numpy.typing import NDArray

from dream._adapter import Plan
from dream._errors import Unsupported
from dream.adapters.keras import checks, consistency, private
from dream.adapters.keras.asynchronous.block import CaughtGradients, FlatParameters, LocalBlock
from dream.adapters.keras.asynchronous.fit import feed_of
from dream.adapters.keras.checkpoint.checkpointer import KerasCheckpointer
from dream.adapters.keras.checkpoint.saver import FitSaver
from dream.adapters.keras.consistency import statistics_of
from dream.adapters.keras.data.resume import FitProgress
from dream.adapters.keras.data.sources import Arrays, Batches
from dream.adapters.keras.engine import Engine
from dream.checkpoint.leaving import Notice
from dream.cluster import settings
from dream.collectives import Communicator
from dream.parameter_server.leases import Lease
from dream.update.local_sgd import AveragingSchedule, Schedule
from dream.update.outer import OuterSteps


@final
class AveragedModel:
    """One model and its optimizer, on one of the replicas. order: the variables, as they lie in
    `gradient`."""

    def __init__(
        self, engine: Engine, machine: FlatParameters, options: Mapping[str, object]
    ) -> None:
        self._engine, self._machine = engine, machine
        self.schedule: Schedule = (
            AveragingSchedule(options, self._average)
            if options["outer_lr"] is None
            else OuterSteps(options, self, lambda: self._average(False, False))
        )
        self._model: Any = None
        self._optimizer: Any = None
        self._update: Callable[[Any, bytes], Any]
        self._samples = 0.0
        self._set = False
        self.order: list[Any] = []
        self.gradient: NDArray[Any]

    @property
    def ranks(self) -> Communicator:
        return self._engine.communicator

    def together(self, tensor: Any) -> NDArray[Any]:
        """Return what a variable would be where the replicas came together, which they do not.
        Every rank calls it."""
        own = np.array(keras.ops.convert_to_numpy(tensor))
        if not self.schedule.apart or own.dtype.kind != "f":
            return own
        (mean,) = self.means([own])
        places = [place for place, variable in enumerate(self.order) if variable is tensor]
        return np.asarray(self.schedule.settled(places[0], mean) if places else mean)

    def go_on(self, schedule: Mapping[str, Any]) -> None:
        """Take up where a checkpoint's replicas stood, whose states were set."""
        self.schedule.load(schedule)
        self._set = True

    def begin(self, model: Any, optimizer: Any) -> None:
        """Take rank 0's weights and state on every rank: before each fit, and the first step; not
        where a checkpoint has set them."""
        if self._model is None:
            self._model, self._optimizer = model, optimizer
            self.order = list(model.trainable_variables)
            self.gradient = self._machine.flat(self.order)
            self._update = self._machine.update(optimizer, self.order)
            if self._engine.parts > 1:
                consistency.report_local_statistics(model)
        if self._model is not model or self._optimizer is not optimizer:
            raise Unsupported(
                "Replicas are averaged by the steps of one optimizer over one model. Received: "
                f"another one, {type(optimizer).__name__} over {model.name!r}. Train one model in "
                "a job."
            )
        held, self._set = self._set, False
        if self._engine.parts > 1 and not held:
            consistency.agree_on(model, [optimizer], self._engine)
            consistency.part_seeds(model, self._engine.rank)

    def step(self, samples: float, present: bytes) -> None:
        """Step on `gradient`, the mean over so many samples; of none, it is 0."""
        if not samples:
            self.gradient.fill(0)
        self._samples = samples
        averaged = self.schedule.before_step()
        self._update(self.gradient, b"" if averaged or not samples else present)
        self.schedule.after_step()

    def settle(self) -> None:
        """Make the replicas alike. Every rank calls it."""
        self.schedule.settle()

    def shapes(self) -> list[tuple[int, ...]]:
        return [tuple(variable.shape) for variable in self.order]

    def copies(self, places: Sequence[int]) -> list[Any]:
        return [np.array(keras.ops.convert_to_numpy(self.order[place])) for place in places]

    def means(self, values: list[Any]) -> list[Any]:
        if self._engine.parts == 1:
            return values
        means: list[Any] = self._engine.communicator.all_reduce(values, "mean")
        return means

    def assign(self, places: Sequence[int], values: list[Any]) -> None:
        for place, value in zip(places, values, strict=True):
            self.order[place].assign(value)

    def _average(self, gradients: bool, own: bool) -> None:
        if gradients:
            self._average_gradient()
        variables = []
        if own:  # parameters and the optimizer's tensors; its counters are alike anyway
            state = self._optimizer.variables
            state = [v for v in state if "float" in str(v.dtype) and len(v.shape)]
            variables = [*self.order, *state]
        if not gradients:
            variables += statistics_of(self._model)
        if variables and self._engine.parts > 1:
            values = [np.array(keras.ops.convert_to_numpy(v)) for v in variables]
            means = self._engine.communicator.all_reduce(values, "mean")
            for variable, mean in zip(variables, means, strict=True):
                variable.assign(mean)

    def _average_gradient(self) -> None:
        """Take the mean over the samples of all ranks."""
        mine = np.append(self.gradient * self.gradient.dtype.type(self._samples), self._samples)
        total = self._engine.communicator.all_reduce(mine.astype(self.gradient.dtype), "sum")
        if total[-1]:
            np.divide(total[:-1], total[-1], out=self.gradient)


@final
class AveragedSteps:
    """The steps of `fit`. One a rank."""

    def __init__(
        self,
        engine: Engine,
        machine: FlatParameters,
        averaged: AveragedModel,
        caught: CaughtGradients,
    ) -> None:
        self.rank, self.looping = engine.rank, engine.looping
        self._engine, self._machine = engine, machine
        self._averaged, self._caught = averaged, caught

    def begin(self, model: Any, source: Arrays | Batches) -> Callable[[Any, int], Any]:
        private.build(model, private.symbolic(self._engine.example(source)))
        checks.check_metrics(model)
        checks.check_means(model)
        averaged, machine = self._averaged, self._machine
        averaged.begin(model, model.optimizer)
        self._engine.take_over(model)
        differentiate = self._caught.of_fit(model, machine, averaged.order)
        logs: Any = {}

        def step(batch: Any, samples: int) -> Any:
            nonlocal logs
            present = b""
            if samples:
                logs, present = differentiate((machine.tensors(batch),), averaged.gradient)
            averaged.step(float(samples), present)
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

    def refresh(self) -> None:
        self._averaged.settle()

    def end_epoch(self, model: Any) -> None:
        """Make the replicas alike, and add up the figures of all of them."""
        self._averaged.settle()
        states = consistency.metric_states(model)
        if states and self._engine.parts > 1:
            values = [np.array(v) for v in states]
            sums = self._engine.communicator.all_reduce(values, "sum")
            for variable, total in zip(states, sums, strict=True):
                variable.assign(total)

    def told(self, model: Any) -> None:
        if self._engine.parts > 1:
            wishes = self._engine.communicator.all_gather_object(bool(model.stop_training))
            model.stop_training = any(wishes)

    def saver(self, asked: Any, progress: FitProgress, users: list[Any]) -> Any:
        alone = self._averaged if self._engine.parts > 1 else None
        held = KerasCheckpointer(self._engine, alone)
        notice = Notice(settings.end_of_time())
        return FitSaver(asked, self._engine, progress, users, notice, held)

    def finish(self, model: Any) -> None:
        model.optimizer.finalize_variable_values(model.trainable_variables)
        if self._engine.parts > 1:
            self._engine.communicator.barrier()  # what rank 0 wrote is there for all to read


def averaging(
    engine: Engine, machine: FlatParameters, plan: Plan
) -> tuple[AveragedModel, CaughtGradients, LocalBlock]:
    """Make what a rank needs to have its model and optimizer averaged, and the block for them."""
    averaged = AveragedModel(engine, machine, plan.options)
    caught = CaughtGradients(
        machine,
        "Replicas are averaged in dream's steps",
        "Use model.fit, or in TensorFlow take the step by strategy.train_step(model, loss, "
        "optimizer)",
    )
    steps = AveragedSteps(engine, machine, averaged, caught)
    block = LocalBlock(steps, plan.seed or 0, caught.take, "local_sgd")
    block.held_by = partial(KerasCheckpointer, engine, averaged if engine.parts > 1 else None)
    return averaged, caught, block
