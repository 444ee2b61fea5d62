"""A Keras model without values, and its training step as TensorFlow traces it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np
import tensorflow as tf

from dream._errors import Unsupported
from dream.adapters.tensorflow.operations import cost, size_of
from dream.adapters.tensorflow.tools.planning.example import KerasExample, example
from dream.adapters.tensorflow.tools.planning.graph import Graph, workspace
from dream.tools.plan.asked import Optimizer, TrainingSpec
from dream.tools.plan.sketch import (
    Candidate,
    ModelFacts,
    Rehearsal,
    Sketch,
    SketchedOp,
    SketchedParameter,
    Sketcher,
    StrategyKind,
)
from dream.tools.plan.traffic import normalised

_SLOTS: dict[Optimizer, int] = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""Variables of each parameter's size that Keras's optimizers keep."""
_COUNTED = 8 + 4
"""Bytes of an optimizer's iterations and learning rate."""
_KINDS: tuple[StrategyKind, ...] = ("single", "mirrored")
"""What is reckoned from a sketch; DTensor's strategies cannot be run without values."""
_TOLD = 4 + 4
"""Bytes of the loss and of the samples that it is the mean over, which travel with gradients."""
_UPDATE = 2
"""Temporaries of a parameter's size in an update."""


def make_sketcher(build: Callable[[], Any], training: TrainingSpec) -> KerasSketcher:
    if training.recompute:
        raise Unsupported(
            "Recomputation is estimated only for torch models. Received: --recompute and a Keras "
            "model. Remove it."
        )
    return KerasSketcher(example(build, training), training)


@final
class KerasSketcher(Sketcher):
    def __init__(self, found: KerasExample, training: TrainingSpec) -> None:
        self._example, self._training = found, training

    def told(self) -> ModelFacts:
        return ModelFacts("tensorflow", "keras", self._example.samples, self._example.named, _KINDS)

    def sketch(self, batch: int) -> Sketch:
        graph, inputs = self._traced(batch)
        parameters = self._parameters()
        saved = graph.saved()
        forward, backward, joint = graph.peaks()
        trained = [p for p in parameters if p.trained]
        state = _SLOTS[self._training.optimizer] * sum(p.size for p in trained) + _COUNTED
        buffers = [v for v in self._example.model.non_trainable_variables if _counted(v)]
        return Sketch(
            batch=batch,
            parameters=parameters,
            ops=self._ops(graph),
            buffers=sum(_bytes(v) for v in buffers),
            told=_TOLD,
            running=sum(_bytes(v) for v in buffers if "moving" in v.name),
            normalised=tuple(
                size
                for v in buffers
                if v.name == "moving_mean"
                for size in normalised(int(np.prod(v.shape)), 4)
            ),
            state=state,
            inputs=inputs,
            saved=sum(one.size for one in saved),
            forward_peak=inputs + forward,
            backward_peak=inputs + backward,
            joint_peak=inputs + joint,
            update_peak=inputs + _UPDATE * max((p.size for p in trained), default=0),
            left=inputs,
        )

    def rehearse(self, candidate: Candidate, batch: int) -> list[Rehearsal] | None:
        """Keras models are reckoned from sketches alone."""
        return None

    def _traced(self, batch: int) -> tuple[Graph, int]:
        """Return the step, and the bytes of its inputs."""
        model, loss = self._example.model, self._example.loss
        marks: list[int] = []
        results: list[Any] = []

        def step(trained: Any, kept: Any, inputs: Any, target: Any) -> Any:
            here = tf.compat.v1.get_default_graph()
            given = inputs[0] if len(inputs) == 1 else inputs
            with tf.GradientTape() as tape:
                tape.watch(trained)
                prediction, _ = model.stateless_call(trained, kept, given, training=True)
                value = loss(prediction, target)
            marks.append(len(here.get_operations()))
            results.extend(tape.gradient(value, trained))
            marks.append(len(here.get_operations()))
            return value

        inputs, target = self._example.specs(batch)
        traced = tf.function(step, autograph=False).get_concrete_function(
            [_variable(v) for v in model.trainable_variables],
            [_variable(v) for v in model.non_trainable_variables],
            inputs,
            target,
        )
        operations = traced.graph.get_operations()[: marks[1]]
        size = sum(map(size_of, [*inputs, *([] if target is None else [target])]))
        taken = workspace if not self._training.fused else lambda _: 0  # a GPU's is cuDNN's own
        return Graph(operations, marks[0], results, taken), size

    def _parameters(self) -> tuple[SketchedParameter, ...]:
        trained = {id(v) for v in self._example.model.trainable_variables}
        return tuple(
            SketchedParameter(
                name=v.path,
                elements=_elements(v),
                rows=v.shape[0] if len(v.shape) else 1,
                itemsize=tf.as_dtype(v.dtype).size,
                trained=id(v) in trained,
            )
            for v in self._example.model.weights
            if id(v) in trained or not _is_buffer(v, self._example.model)
        )

    def _ops(self, graph: Graph) -> tuple[SketchedOp, ...]:
        found = []
        for index, op in enumerate(graph.operations):
            kind, flops, moved = cost(op)
            if moved:
                found.append(SketchedOp(graph.phase(index), kind, flops, moved))
        for v in self._example.model.trainable_variables:
            slots = _SLOTS[self._training.optimizer]
            found.append(SketchedOp("update", "other", 0, (3 + 2 * slots) * _bytes(v)))
        return tuple(found)


def _variable(v: Any) -> tf.TensorSpec:
    return tf.TensorSpec(v.shape, v.dtype)


def _elements(v: Any) -> int:
    size = 1
    for dim in v.shape:
        size *= int(dim)
    return size


def _bytes(v: Any) -> int:
    return _elements(v) * int(tf.as_dtype(v.dtype).size)


def _counted(v: Any) -> bool:
    """Statistics and the like; not weights that are frozen."""
    return bool(v.trainable is False)


def _is_buffer(v: Any, model: Any) -> bool:
    return any(v is each for each in model.non_trainable_variables) and _counted(v)
