"""split="pipeline" and split="layers": whole layers on devices of this process, or on ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any, final
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf

from dream._adapter import Loss, Plan, Step, Weight
from dream._errors import Unsupported
from dream.adapters.keras import checks, losses, private
from dream.adapters.keras.consistency import metric_states
from dream.adapters.keras.forward import check_loss, score
from dream.adapters.keras.optimizer import adopt_clipping, check_scaled
from dream.adapters.keras.private import compiled_loss
from dream.adapters.tensorflow import evaluate
from dream.adapters.tensorflow.data import GlobalBatches
from dream.adapters.tensorflow.parallel.pipeline import remote_variables, stages
from dream.adapters.tensorflow.parallel.pipeline.checks import check_masks, check_weights
from dream.adapters.tensorflow.parallel.pipeline.engine import KerasPipeline, MicrobatchLoss
from dream.adapters.tensorflow.parallel.pipeline.local import LocalPipeline
from dream.adapters.tensorflow.parallel.pipeline.ranks import RankPipeline
from dream.adapters.tensorflow.parallel.sharding.optimizer import refuse_by_hand
from dream.adapters.tensorflow.parallel.split import SplitParallelism
from dream.adapters.tensorflow.parallel.split_fit import Kind, SplitRunner
from dream.adapters.tensorflow.step import build_model
from dream.adapters.tensorflow.tracing import Shaped
from dream.data.partition import split

FitStep = Callable[[Any, bool], Any]


@final
class PipelineParallelism(SplitParallelism):
    """`model_parallel` and `hybrid`, a pipeline for each model."""

    def connect(self, plan: Plan) -> SplitRunner:
        self._kind: type[KerasPipeline] = LocalPipeline if plan.cluster.alone else RankPipeline
        self._placement = self._kind.place(plan)
        self._topology, self._communicator = self._placement.topology, self._placement.communicator
        self.global_batches = GlobalBatches(self.communicator, self._placement.takers)
        divide = stages.placed if plan.options["split"] == "layers" else stages.pipeline
        self._division = divide(plan.options, self._placement.mesh)
        self._pipelines: WeakKeyDictionary[Any, KerasPipeline] = WeakKeyDictionary()
        return PipelineRunner(self)

    def place(self, model: Any) -> None:
        self.pipeline(model)

    def pipeline(self, model: Any) -> KerasPipeline:
        """A model's, made on first use."""
        if model not in self._pipelines:
            partition = self._division.partition(model, self.communicator)
            made = self._kind(self._placement, model, partition, self._division, self.engine)
            self._pipelines[model] = made
        return self._pipelines[model]

    def before_step(self, kind: str) -> None:
        self._placement.consistency.step(kind)

    def before_first_step(self, model: Any, batch: Any, kind: Kind) -> None:
        self._placement.consistency.compare(batch)
        if kind != "predict":
            with remote_variables.only_shapes():
                private.build_but_optimizer(model, private.symbolic(batch))
            checks.check_reduced(model)
            losses.adopt(model, self.engine.update_options.strict)

    def take_optimizer(self, optimizer: Any) -> Any:
        """Have it clip what it is given, and refuse a gradient of a rank's own."""
        alone = self.plan.cluster.alone
        adopt_clipping(optimizer, self.engine.update_options, by_norm=alone)
        return optimizer if alone else refuse_by_hand(optimizer)

    def train_step(self, model: Any, loss: Loss, optimizer: Any, weight: Weight | None) -> Step:
        check_loss(loss)
        check_scaled(self.engine.update_options.precision, optimizer)

        def loss_of(prediction: Any, rest: Any) -> Any:
            return tf.reduce_mean(score(loss, prediction, rest[-1]))

        fresh = True

        def step(*batch: Any) -> Any:
            nonlocal fresh
            self.before_step("train")
            batch = self.global_batches.whole(batch)
            batch = tuple(tf.nest.map_structure(tf.convert_to_tensor, batch))
            if fresh:
                build_model(model, batch)
                self.take_optimizer(optimizer)
                fresh = False
            inputs, _ = split(batch)
            x = inputs[0] if len(inputs) == 1 else list(inputs)
            value, _ = self.pipeline(model).train(x, batch, loss_of, optimizer, weight)
            return value

        return step

    def sums(self, model: Any, metrics: evaluate.Metrics) -> Callable[..., Any]:
        pipeline = self.pipeline(model)

        def forward(*inputs: Any, training: bool = False) -> Any:
            del training
            return pipeline.forward(inputs[0] if len(inputs) == 1 else list(inputs))[0]

        return lambda *batch: evaluate.sums(forward, batch, metrics)


@final
class PipelineRunner(SplitRunner):
    """Keras's loops over a model in stages: the losses, metrics and logs of its own steps, the same
    on every rank."""

    def __init__(self, parallelism: PipelineParallelism) -> None:
        self._parallelism = parallelism

    def optimizer(self, optimizer: Any) -> Any:
        return self._parallelism.take_optimizer(optimizer)

    def function(self, model: Any, kind: Kind) -> FitStep:
        for name in (f"{kind}_step", *(() if kind == "predict" else ("compute_loss",))):
            _check_own(model, name)
        steps = {"train": self._train, "test": self._test, "predict": self._predict}
        step = steps[kind](model)
        fresh = True

        def run(batch: Any, one_length: bool) -> Any:
            nonlocal fresh
            self._parallelism.before_step(kind)
            if fresh:
                self._parallelism.before_first_step(model, batch, kind)
                fresh = False
            return step(batch, one_length)

        return run

    def _train(self, model: Any) -> FitStep:
        loss_of, counted = _loss_of(model), Shaped(partial(_count, model))

        def step(batch: Any, one_length: bool) -> Any:
            x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
            pipeline = self._parallelism.pipeline(model)
            check_masks(model)
            check_weights(model, weight)
            loss, runs = pipeline.train(x, (y, weight), loss_of, model.optimizer)
            given = [pipeline.gather(outputs, everywhere=False) for outputs in runs]
            outputs = list(chain.from_iterable(filter(None, given)))
            if outputs:
                counted(one_length, x, y, pipeline.joined(outputs), weight, loss)
            pipeline.copy_metrics(metric_states(model))
            return model.get_metrics_result()

        return step

    def _test(self, model: Any) -> FitStep:
        def count(x: Any, y: Any, prediction: Any, weight: Any, penalty: Any) -> Any:
            own = compiled_loss(model)(y, prediction, weight)
            return _count(model, x, y, prediction, weight, own + penalty, again=False)

        counted = Shaped(count)

        def step(batch: Any, one_length: bool) -> Any:
            x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
            prediction, penalty = self._parallelism.pipeline(model).forward(x)
            return counted(one_length, x, y, prediction, weight, penalty)

        return step

    def _predict(self, model: Any) -> FitStep:
        def step(batch: Any, _one_length: bool) -> Any:
            x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
            return self._parallelism.pipeline(model).forward(x)[0]

        return step


def _loss_of(model: Any) -> MicrobatchLoss:
    """The loss that a model was compiled with, of (target, sample weight). Its metrics count the
    whole batch later."""

    def loss_of(prediction: Any, rest: Any) -> Any:
        y, weight = rest
        with keras.StatelessScope():
            return compiled_loss(model)(y, prediction, weight)

    return loss_of


def _count(
    model: Any, x: Any, y: Any, prediction: Any, weight: Any, loss: Any, again: bool = True
) -> Any:
    """Have the metrics count a whole batch. again: whether the outputs' own losses are still to
    be counted."""
    if again and private.output_losses(model):
        compiled_loss(model)(y, prediction, weight)
    first = next(t for t in private.tree.flatten(x) if t is not None)
    private.loss_tracker(model).update_state(loss, sample_weight=tf.shape(first)[0])
    return model.compute_metrics(x, y, prediction, sample_weight=weight)


def _check_own(model: Any, name: str) -> None:
    if getattr(type(model), name) is not getattr(keras.Model, name):
        raise Unsupported(
            f"A model in parts takes Keras's own {name}. Received: {type(model).__name__}.{name}. "
            "Use strategy.train_step, or 'sharded', which runs a model's own step."
        )
