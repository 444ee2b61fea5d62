"""The microbatches of one batch on their way through the stages of a device, forward and back:
where each lies in its batch, it draws what its samples draw on one device, and its losses count for
what they are of the whole batch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, final

import keras
import tensorflow as tf
from keras import ops

from dream.adapters.keras import hooks, losses
from dream.adapters.keras.data.share import BatchShare
from dream.adapters.keras.engine import Engine
from dream.adapters.tensorflow.keras import slices
from dream.adapters.tensorflow.keras.draws import GraphRows, drawing
from dream.adapters.tensorflow.parallel.pipeline.checks import check_drawn, check_kept, seeds_in
from dream.adapters.tensorflow.tracing import Compiled
from dream.pipeline.partition import Mail, Partition, Stage
from dream.pipeline.schedule import StageTask

Values = dict[int, Any]
"""Tensors by the numbers that stages know them by."""


@final
class MicrobatchPlace(NamedTuple):
    """Where a micro-batch lies in its batch.

    first, samples: those of the batch that it has; total: the batch's. fraction: of the mean
    over the batch that its own mean counts for.
    """

    first: int
    samples: int
    total: int
    fraction: float

    @classmethod
    def of(cls, rows: slice, total: int, fraction: float) -> MicrobatchPlace:
        return cls(rows.start, rows.stop - rows.start, total, fraction)

    def tensor(self) -> tf.Tensor:
        """As functions that are traced once for all microbatches take it."""
        return tf.constant(tuple(self), tf.float32)


def drawing_at(place: tf.Tensor) -> AbstractContextManager[Any]:
    """Inside, what Keras draws is drawn for the batch, of which the microbatch uses its rows."""
    first, samples, total, _ = tf.unstack(place, num=4)
    rows = GraphRows(BatchShare(samples, total), tf.cast(first, tf.int32), 1)
    return drawing(rows)


@final
class MicrobatchLosses(losses.LossPlace):
    """Scales a microbatch's losses such that, weighed by its fraction, they add up."""

    def __init__(self, engine: Engine, place: tf.Tensor) -> None:
        self.engine = engine
        self._fraction = place[3]

    def as_sum(self, value: Any) -> Any:
        return ops.divide_no_nan(value, ops.cast(self._fraction, value.dtype))

    def by_count(self, value: Any, count: Any) -> Any:
        raise AssertionError("masks and such weights are refused before")


@final
class PlacedStage:
    """A stage on a device. copies: by the id of a Keras variable this device's own; empty where
    the variables themselves are there. several: whether a batch comes in several microbatches.
    adds_rows: whether rows of an embedding's gradient have been added up."""

    def __init__(
        self,
        stage: Stage,
        device: str,
        copies: Mapping[int, tf.Variable],
        engine: Engine,
        *,
        several: bool,
    ) -> None:
        self.stage, self.device, self._several = stage, device, several
        self._copies, self._engine = copies, engine
        self.variables = [self._own(v) for v in stage.model.trainable_variables]
        self.gradients: list[Any] = [None] * len(self.variables)
        self.adds_rows = False
        self._train, self._predict = (
            Compiled(partial(self._called, training)) for training in (True, False)
        )
        self._seeds = [self._own(v) for v in seeds_in(stage.model)]
        self._drawn_from: list[Any] = []
        self._read, self._draw_again = tf.function(self._seeds_now), tf.function(self._set_seeds)
        self._under_way: dict[int, tuple[Any, list[Any], list[Any], Any]] = {}

    def _own(self, variable: Any) -> Any:
        return self._copies.get(id(variable), variable.value)

    def begin(self) -> None:
        """Have all microbatches to come, those of one batch, draw from where generators are now."""
        self._drawn_from = self.seeds()

    def seeds(self) -> list[Any]:
        """Return where this stage's generators are."""
        return list(self._read()) if self._seeds else []

    def go_on_from(self, seeds: Sequence[Any]) -> None:
        if self._seeds:
            self._draw_again(*seeds)

    def forward(self, microbatch: int, taken: Sequence[Any], place: MicrobatchPlace) -> list[Any]:
        """Return what the stage gives, and remember how, for `backward`."""
        with tf.device(self.device):
            taken = [tf.identity(x) for x in taken]
            self.go_on_from(self._drawn_from)
            # what is computed again is traced as the tape looks on, outside of the function
            with hooks.drawn_for(None), tf.GradientTape() as tape:
                tape.watch([x for x in taken if x.dtype.is_floating])
                given, penalty = self._train(place.tensor(), *taken)
        self._under_way[microbatch] = tape, taken, given, penalty
        return given  # type: ignore[no-any-return]

    def predict(self, taken: Sequence[Any], place: MicrobatchPlace) -> tuple[list[Any], Any]:
        """In evaluation: (what the stage gives, the penalties of its layers)."""
        self.go_on_from(self._drawn_from)
        return self._predict(place.tensor(), *taken)  # type: ignore[no-any-return]

    def backward(
        self, microbatch: int, gradients: Sequence[Any], fraction: float
    ) -> tuple[list[Any], Any]:
        """From the loss's gradient by what the stage gave, (that by what it took, the penalties of
        its layers); that by its variables adds up over microbatches."""
        tape, taken, given, penalty = self._under_way.pop(microbatch)
        flowing = [(y, g) for y, g in zip(given, gradients, strict=True) if g is not None]
        with tf.device(self.device):
            targets = [*(y for y, _ in flowing), penalty]
            seeds = [*(g for _, g in flowing), tf.constant(fraction, penalty.dtype)]
            sources = [x for x in taken if x.dtype.is_floating]
            found = tape.gradient(targets, [*sources, *self.variables], seeds)
            for index, gradient in enumerate(found[len(sources) :]):
                if gradient is not None:
                    self.adds_rows |= slices.is_slices(gradient)
                    gradient, before = tf.convert_to_tensor(gradient), self.gradients[index]
                    self.gradients[index] = gradient if before is None else before + gradient
        by_input = iter(found)
        by_taken = [next(by_input) if x.dtype.is_floating else None for x in taken]
        return by_taken, penalty * fraction

    def take_variables(self) -> None:
        """Have the copies be as the variables are."""
        for variable in self.stage.model.variables:
            self._copies[id(variable)].assign(variable.value)

    def summed(self) -> list[tuple[Any, Any]]:
        """Each variable that trains and its gradient, which starts anew."""
        pairs = list(zip(self.stage.model.trainable_variables, self.gradients, strict=True))
        self.gradients = [None] * len(self.gradients)
        return pairs

    def _seeds_now(self) -> list[Any]:
        return [tf.identity(seed) for seed in self._seeds]

    def _set_seeds(self, *values: Any) -> None:
        for seed, value in zip(self._seeds, values, strict=True):
            seed.assign(value)

    def _called(self, training: bool, place: Any, *taken: Any) -> tuple[list[Any], Any]:
        model = self.stage.model
        with tf.device(self.device), drawing_at(place):
            if not self._copies:
                found = self._outputs(taken, place, training=training)
            else:
                found = self._outputs_by_copies(taken, place, training=training)
        check_drawn(model)
        if training and self._several:
            seeds = {id(v) for v in seeds_in(model)}
            states = [v for v in model.non_trainable_variables if id(v) not in seeds]
            check_kept(model, [self._own(v) for v in states])
        return found

    def _outputs_by_copies(
        self, taken: Sequence[Any], place: Any, *, training: bool
    ) -> tuple[list[Any], Any]:
        mapping = [(v, self._own(v)) for v in self.stage.model.variables]
        with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
            found = self._outputs(taken, place, training=training)
        for variable in self.stage.model.non_trainable_variables:
            value = scope.get_current_value(variable)
            if value is not self._own(variable):
                self._own(variable).assign(value)
        return found

    def _outputs(
        self, taken: Sequence[Any], place: Any, *, training: bool
    ) -> tuple[list[Any], Any]:
        """(what the model gives, the sum of the penalties of its layers)."""
        model = self.stage.model
        given = model(list(taken), training=training)
        found = [tf.reduce_sum(tf.cast(x, tf.float32)) for x in model.losses]
        with losses.placed(MicrobatchLosses(self._engine, place)):
            lacking = losses.added_sums(model, self._engine, list(taken), self._values())
        penalty = tf.add_n([tf.zeros(()), *found]) + tf.cast(lacking, tf.float32)
        return list(given) if isinstance(given, (list, tuple)) else [given], penalty

    def _values(self) -> Callable[[Any], Any]:
        """Return what gives the value of a variable without asking other ranks, which are at
        something else. They are read once, if at all."""
        variables = self.stage.model.variables
        read = tf.function(lambda: [tf.identity(self._own(v)) for v in variables])
        found: dict[int, Any] = {}

        def value(variable: Any) -> Any:
            if not found:
                found.update(zip(map(id, variables), read(), strict=True))
            return found[id(variable)]

        return value


@dataclass(frozen=True, slots=True)
class MicrobatchInputs:
    """A batch in microbatches: the model's flat inputs, what the loss takes beside its output, and
    where each lies. scale: what all losses are multiplied by."""

    inputs: Sequence[Values]
    rest: Sequence[Any]
    places: Sequence[MicrobatchPlace]
    scale: float = 1.0

    def worth(self, microbatch: int) -> float:
        """What a microbatch's loss is multiplied by."""
        return self.places[microbatch].fraction * self.scale


LossAndGradients = Callable[[list[Any], Any, MicrobatchPlace, float], tuple[Any, Sequence[Any]]]


"""From a microbatch's outputs, its other half, its place and what it is worth, the loss and its
gradient by each output."""


@final
class MicrobatchRun:
    """One device's tasks. stages: those that are on it, by number; loss: None in evaluation;
    device: its index in the row of the mesh, and its name."""

    def __init__(
        self,
        partition: Partition,
        stages: Mapping[int, PlacedStage],
        batch: MicrobatchInputs,
        loss: LossAndGradients | None,
        device: tuple[int, str],
        mail: Mail,
    ) -> None:
        self._partition, self._stages, self._batch = partition, stages, batch
        self._loss, self._mail = loss, mail
        self._here, self._device = device
        self._values: list[Values] = [dict(inputs) for inputs in batch.inputs]
        self._by_output: dict[int, Sequence[Any]] = {}
        self.losses: list[Any] = []
        self.outputs: dict[int, list[Any]] = {}

    def total(self) -> Any:
        """The sum of the losses and penalties, as float32."""
        return tf.add_n([tf.zeros(()), *(tf.cast(x, tf.float32) for x in self.losses)])

    def run(self, task: StageTask) -> None:
        with tf.device(self._device):
            (self._backward if task.backward else self._forward)(task.stage, task.microbatch)

    def _forward(self, stage: int, m: int) -> None:
        taken = [self._value(t, m) for t in self._partition.takes[stage]]
        place, worth = self._batch.places[m], self._batch.worth(m)
        if stage == self._partition.loss:
            self.outputs[m] = taken
            if self._loss is not None:
                outputs = [tf.identity(y) for y in taken]
                rest = self._batch.rest[m]
                loss, self._by_output[m] = self._loss(outputs, rest, place, worth)
                self.losses.append(loss)
            return
        if self._loss is not None:
            given = self._stages[stage].forward(m, taken, place)
        else:
            given, penalty = self._stages[stage].predict(taken, place)
            self.losses.append(penalty * worth)
        for t, y in zip(self._partition.gives[stage], given, strict=True):
            self._values[m][t] = y
            for device in self._partition.goes_to(t):
                self._mail.send(("value", t, m, stage), y, self._here, device)

    def _backward(self, stage: int, m: int) -> None:
        if stage == self._partition.loss:
            found = self._by_output.pop(m)
        else:
            gives = self._partition.gives[stage]
            gradients = [self._gradient(t, m) for t in gives]
            found, penalty = self._stages[stage].backward(m, gradients, self._batch.worth(m))
            self.losses.append(penalty)
            for t in gives:
                del self._values[m][t]
        for t, gradient in zip(self._partition.takes[stage], found, strict=True):
            if t in self._partition.maker:
                to = self._partition.comes_from(t)
                self._mail.send(("gradient", t, m, stage), gradient, self._here, to)

    def _value(self, t: int, m: int) -> Any:
        values = self._values[m]
        if t not in values:
            letter = "value", t, m, self._partition.maker[t]
            values[t] = self._mail.take(letter, self._partition.comes_from(t), self._here)
        return values[t]

    def _gradient(self, t: int, m: int) -> Any:
        """The loss's gradient by a tensor: what all that take it found."""
        found = [
            self._mail.take(("gradient", t, m, taker), self._partition.devices[taker], self._here)
            for taker in self._partition.takers(t)
        ]
        present = [gradient for gradient in found if gradient is not None]
        return tf.add_n(present) if present else None
