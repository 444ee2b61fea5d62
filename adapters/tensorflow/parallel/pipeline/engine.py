"""Steps of one model in stages: microbatches, what each counts for, and the update.

Every row of the mesh holds all stages, and the rows take a batch's microbatches in turn. What each
microbatch counts for adds up to the mean over the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import keras
import tensorflow as tf

from dream._adapter import Plan, Weight
from dream._errors import ConfigurationError
from dream._topology import Mesh, Topology
from dream.adapters.keras import hooks, losses, private, recompute
from dream.adapters.keras.checks import check_stateless
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.update import coupling
from dream.adapters.tensorflow.errors import translated
from dream.adapters.tensorflow.keras import slices
from dream.adapters.tensorflow.parallel.consistency import Consistency
from dream.adapters.tensorflow.parallel.pipeline import checks
from dream.adapters.tensorflow.parallel.pipeline.microbatch_run import (
    LossAndGradients,
    MicrobatchInputs,
    MicrobatchLosses,
    MicrobatchPlace,
    PlacedStage,
    Values,
)
from dream.adapters.tensorflow.parallel.pipeline.stages import StageDivision
from dream.adapters.tensorflow.parallel.sharding.layouts import belongs_to
from dream.collectives import Communicator
from dream.pipeline.division import cuts
from dream.pipeline.partition import Partition, Stage

MicrobatchLoss = Callable[[Any, Any], Any]
"""From the model's output and a microbatch's other half the loss, a mean over its samples."""


@dataclass(frozen=True, slots=True)
class PipelinePlacement:
    """Where stages can be: the devices of one process, or one of each rank.

    takers: the ranks that a batch is dealt to, of all that read it.
    """

    mesh: Mesh
    topology: Topology
    communicator: Communicator
    takers: Communicator
    consistency: Consistency

    @property
    def shares_cores(self) -> bool:
        """Whether stages compute on the same cores: a batch that is cut gains nothing then."""
        return False


class KerasPipeline(ABC):
    """The stages of one model; where they are is left open.

    rows: of the mesh. trained: the variables that this process updates. engine: what says how an
    update is made; under `accumulate` so many runs of microbatches make one.
    """

    trained: Sequence[Any]

    def __init__(
        self,
        placement: PipelinePlacement,
        model: Any,
        partition: Partition,
        division: StageDivision,
        engine: Engine,
    ) -> None:
        self.model, self.partition, self.rows = model, partition, placement.mesh.data
        self.schedule = division.schedule
        self._engine, self._update_options = engine, engine.update_options
        several = division.asked or not placement.shares_cores
        self._count = (division.microbatches if several else 1) * self.rows
        self._asked = division.asked
        self._tried = False
        self._loss, self._update = cache(self._compile_loss), cache(self._compile_update)
        if self._count > 1:
            check_stateless(model)
            checks.check_statistics(model)
            inputs = model.inputs
            with hooks.drawn_for(None):
                coupling.check(model, engine, inputs[0] if len(inputs) == 1 else list(inputs))
        checks.check_seeds(partition)
        by_stage = engine.update_options.recompute == "sqrt"  # of the depth of each
        for each in [stage.model for stage in partition.stages] if by_stage else [model]:
            recompute.adopt(each, engine)

    def placed_stage(self, stage: Stage, device: str, copies: Mapping[int, Any]) -> PlacedStage:
        return PlacedStage(stage, device, copies, self._engine, several=self._count > 1)

    @staticmethod
    @abstractmethod
    def place(plan: Plan) -> PipelinePlacement: ...

    @abstractmethod
    def run(self, batch: MicrobatchInputs, loss: LossAndGradients | None) -> tuple[Any, list[Any]]:
        """Forward and back, gradients staying in the stages; without a loss forward, as in
        evaluation. (Loss, outputs by microbatch, as far as they are here.)"""

    @abstractmethod
    def reduce(self, losses: Sequence[Any]) -> tuple[Any, list[Any]]:
        """(loss, gradients of what is trained here) of all runs since the last call. losses: what
        they gave."""

    def summed(self, value: Any) -> Any:
        """Of all processes."""
        return value

    @abstractmethod
    def build(self, optimizer: Any) -> None:
        """Make an optimizer's state, each where its variable is."""

    @abstractmethod
    def finite(self, gradients: Sequence[Any]) -> Any:
        """Whether the whole model's gradient is."""

    def clipped(self, gradients: list[Any], _optimizer: Any, _scale: float) -> list[Any]:
        """As far as the optimizer cannot, which knows only what is here. scale: what gradients are
        multiplied by."""
        return gradients

    def gather(self, outputs: list[Any], *, everywhere: bool) -> list[Any] | None:
        """All microbatches' outputs, on every rank or on the one that counts metrics; None where
        they are not."""
        del everywhere  # all are here
        return outputs

    def copy_metrics(self, states: Sequence[Any]) -> None:
        """Have every rank know what metrics have counted."""
        del states  # one process knows

    @property
    @abstractmethod
    def stages_here(self) -> Iterable[PlacedStage]:
        """All that this process has, of every row."""

    @abstractmethod
    def copy_seeds(self) -> None:
        """Have the generators of rows that had no samples go on as the first row's."""

    @abstractmethod
    def copy_variables(self) -> None:
        """Before a batch: all rows are alike."""

    def owner(self, name: str, shape: Sequence[int]) -> Any | None:
        """The variable that an optimizer's state belongs to, if to a single one."""
        return belongs_to(name, shape, self.model.trainable_variables)

    def packed(self, values: Values) -> Any:
        """The tensors of the model's outputs in its own structure."""
        flat = [values[t] for t in self.partition.outputs]
        return private.tree.pack_sequence_as(private.output_structure(self.model), flat)

    def flat(self, inputs: Any) -> Values:
        """The model's inputs by their numbers."""
        return dict(
            zip(self.partition.inputs, private.flat_inputs(self.model, inputs), strict=True)
        )

    def train(
        self, x: Any, rest: Any, loss: MicrobatchLoss, optimizer: Any, weight: Weight | None = None
    ) -> tuple[Any, list[list[Any]]]:
        """(mean loss over the batch, the model's outputs by run and microbatch). rest: what the
        loss and the weight are taken of, cut as x is; None in it stays."""
        samples = int(private.tree.flatten(x)[0].shape[0])
        runs = min(samples, self._update_options.micros)
        if self._asked and not self._tried and samples < self._count * runs:
            raise ConfigurationError(
                "A batch has fewer samples than microbatches. Received: batch size "
                f"{samples}, microbatches={self._count} over {self.rows} rows, accumulate="
                f"{self._update_options.micros}. Ask for fewer, or take larger batches."
            )
        self._tried = True
        bounds = cuts(samples, runs, self._count)
        inputs, others = ([_cut(whole, edges) for edges in bounds] for whole in (x, rest))
        self._begin()
        with translated():
            update = self._update(optimizer)
            scale = float(optimizer.scale_loss(tf.ones(())))
            found, outputs, most = [], [], 0
            for edges, xs, rests, parts in zip(
                bounds, inputs, others, _fractions(others, samples, weight), strict=True
            ):
                counting = [i for i, fraction in enumerate(parts) if fraction]
                batch = MicrobatchInputs(
                    [self.flat(xs[i]) for i in counting], [rests[i] for i in counting],
                    [MicrobatchPlace.of(edges[i], samples, parts[i]) for i in counting], scale,
                )  # fmt: skip
                value, given = self.run(batch, self._loss(loss))
                found.append(value)
                outputs.append(given)
                most = max(most, len(counting))
            self._end(most)
            if any(stage.adds_rows for stage in self.stages_here):
                slices.tell(optimizer)
            value, gradients = self.reduce(found)
            gradients = self.clipped(gradients, optimizer, scale)
            update(gradients, _scales(optimizer) and self.finite(gradients))
        return value / scale, outputs

    def forward(self, inputs: Any) -> tuple[Any, Any]:
        """(the model's output in evaluation, the penalties of its layers), on every rank. The rows
        share the samples."""
        whole = self.flat(inputs)
        samples = int(next(iter(whole.values())).shape[0])
        (bounds,) = cuts(samples, 1, self.rows)
        batch = MicrobatchInputs(
            [{t: x[rows] for t, x in whole.items()} for rows in bounds], [None] * len(bounds),
            [MicrobatchPlace.of(rows, samples, (rows.stop - rows.start) / samples)
             for rows in bounds],
        )  # fmt: skip
        self._begin()
        with translated():
            penalty, given = self.run(batch, None)
            self._end(len(bounds))
            outputs = self.gather(given, everywhere=True)
            assert outputs is not None
            return self.joined(outputs), self.summed(penalty)

    def _begin(self) -> None:
        self.copy_variables()
        for stage in self.stages_here:
            stage.begin()

    def _end(self, microbatches: int) -> None:
        """Have all rows' generators go on alike."""
        if microbatches < self.rows:
            self.copy_seeds()

    def joined(self, outputs: Sequence[Sequence[Any]]) -> Any:
        """The model's output, of all microbatches'."""
        found = [tf.concat(parts, 0) for parts in zip(*outputs, strict=True)]
        return self.packed(dict(zip(self.partition.outputs, found, strict=True)))

    def _compile_loss(self, loss: MicrobatchLoss) -> LossAndGradients:
        @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
        def compute(outputs: Any, rest: Any, place: Any, worth: Any) -> Any:
            with tf.GradientTape() as tape, losses.placed(MicrobatchLosses(self._engine, place)):
                tape.watch(outputs)
                flat = dict(zip(self.partition.outputs, outputs, strict=True))
                value = _wide(loss(self.packed(flat), rest))
                value *= tf.cast(worth, value.dtype)
            checks.check_loss_draws(self.model)
            return value, tape.gradient(value, outputs)

        def call(outputs: Any, rest: Any, place: MicrobatchPlace, worth: float) -> Any:
            return compute(outputs, rest, place.tensor(), tf.constant(worth))

        return call

    def _compile_update(self, optimizer: Any) -> Callable[..., None]:
        """Keras's own update, each variable's on the device where it lies, given whether all
        gradients are finite; asked where the loss is scaled."""
        variables = self.trained
        self.build(optimizer)

        @tf.function  # type: ignore[untyped-decorator]
        def update(gradients: Sequence[Any], finite: Any) -> None:
            if _scales(optimizer):
                optimizer.check_finite = lambda _: finite
            type(optimizer).apply(optimizer, list(gradients), variables)
            if not variables:  # Keras does nothing then, and counts nothing
                counter = private.counter(getattr(optimizer, "inner_optimizer", optimizer))
                counter.assign_add(tf.cast(finite, counter.dtype) if _scales(optimizer) else 1)

        return update  # type: ignore[no-any-return]


def all_finite(gradients: Sequence[Any]) -> Any:
    present = [tf.reduce_all(tf.math.is_finite(g)) for g in gradients if g is not None]
    return tf.reduce_all(tf.stack([tf.constant(True), *present]))


def _cut(batch: Any, microbatches: Sequence[slice]) -> list[Any]:
    return [private.tree.map_structure(partial(_rows, each), batch) for each in microbatches]


def _rows(samples: slice, x: Any) -> Any:
    return None if x is None else x[samples]


def _fractions(
    runs: Sequence[Sequence[Any]], samples: int, weight: Weight | None
) -> list[list[float]]:
    """Return the fraction of the mean over all that each microbatch's mean counts for."""
    if weight is None:
        counts = [[float(private.tree.flatten(m)[0].shape[0]) for m in run] for run in runs]
        return [[count / samples for count in run] for run in counts]
    counts = [[float(weight(*m)) for m in run] for run in runs]
    total = sum(map(sum, counts))
    return [[count / total if total else 0.0 for count in run] for run in counts]


def _scales(optimizer: Any) -> bool:
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def _wide(value: Any) -> Any:
    """A loss in a type that its scale fits into."""
    return value if value.dtype.size >= 4 else tf.cast(value, tf.float32)
