"""Steps on a mesh: global batches in, ordinary tensors out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from types import MethodType
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from dream._errors import Unsupported
from dream._log import logger, warn_once
from dream._patches import value_set
from dream.adapters.keras import private, recompute
from dream.adapters.keras.consistency import drawing_layers, metric_states
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.optimizer import optimizers_of
from dream.adapters.keras.step import MicroBatches
from dream.adapters.keras.update import in_python
from dream.adapters.tensorflow.errors import translated
from dream.adapters.tensorflow.keras import slices
from dream.adapters.tensorflow.parallel.sharding.mesh_placement import MeshPlacement, leaves
from dream.adapters.tensorflow.parallel.sharding.optimizer import laid, stepping, take
from dream.adapters.tensorflow.parallel.sharding.variables import MeshVariable, writing_once
from dream.adapters.tensorflow.parallel.split_fit import Kind, SplitRunner
from dream.adapters.tensorflow.private import draws_in, without_memory_pass
from dream.adapters.tensorflow.tracing import spec_of

_drawing_told: ContextVar[bool] = ContextVar("dream.mesh_draws_told", default=True)
"""Whether layers that draw in the step that is being traced have been named."""
_STEPS = {"train": "train_step", "test": "test_step", "predict": "predict_step"}
Part = Callable[..., list[Any]]
"""From a micro-batch, what it is of the whole batch, and how many samples that has: what is added
up. The last two are scalar tensors of float32."""


@final
class MeshRunner(SplitRunner):
    """Runs Keras's own steps on a mesh."""

    def __init__(self, placement: MeshPlacement, engine: Engine) -> None:
        self._placement = placement
        self._engine = engine

    def optimizer(self, optimizer: Any) -> Any:
        return take(optimizer, self._placement, self._engine.update_options)

    def function(self, model: Any, kind: Kind) -> Callable[[Any, bool], Any]:
        cuts = kind == "train" and self._engine.update_options.accumulates
        make = self._in_micros if cuts else self._at_once
        steps = {one_length: make(model, kind, one_length) for one_length in (True, False)}
        fresh = True

        def run(batch: Any, one_length: bool) -> Any:
            nonlocal fresh
            if fresh:
                self._placement.consistency.compare(batch)
                self._lay_out(model, batch, kind)
                fresh = False
            with value_set(_drawing_told, bool(drawing_layers(model))):
                return steps[one_length](batch)

        return run

    def _at_once(self, model: Any, kind: Kind, one_length: bool) -> Callable[..., Any]:
        own = getattr(model, _STEPS[kind])

        def step(*batch: Any) -> Any:
            with in_python.watched(model, self._engine) if kind == "train" else nullcontext():
                return own(*batch)

        return compiled(step, self._placement, kind, one_length=one_length)

    def _in_micros(self, model: Any, _kind: Kind, one_length: bool) -> Callable[..., Any]:
        """Keras's own step of training."""
        micro = MicroBatches(model, self._engine)

        def part(batch: Any, share: Any, rows: Any) -> list[Any]:
            with in_python.watched(model, self._engine):
                found = micro.gradients(batch, share, rows, known=one_length)
            return [laid(g, self._placement) for g in found]

        def finish(*sums: Any) -> Any:
            update = micro.update(sums)
            update.optimizer.apply(update.gradients, update.variables)
            return model.get_metrics_result()

        most = self._engine.update_options.micros
        return in_micros(part, finish, self._placement, most, one_length=one_length)

    def _lay_out(self, model: Any, batch: Any, kind: Kind) -> None:
        """Make all that a step of this kind uses, and put it onto the mesh."""
        example = private.tree.map_structure(_tensor, batch)
        with self._placement.making():
            if kind != "predict":
                _build(model, example, kind)
            elif not model.built:
                model.predict_step(example)
        if kind == "train":
            report_draws(model)
        self._placement.place_model(model)
        recompute.adopt(model, self._engine)
        self._placement.place_metrics(model)
        model.get_metrics_result = MethodType(_results, model)
        for optimizer in optimizers_of(model) if kind == "train" else ():
            slices.tell_of(model, optimizer)
            self._placement.place_optimizer(optimizer, model.trainable_variables)


def _build(model: Any, example: Any, kind: Kind) -> None:
    """Make all but the optimizer's state on the shapes of a batch. A step of the user's own may
    call the loss otherwise than Keras does: what the model's call has made is all, then."""
    try:
        private.build_but_optimizer(model, private.symbolic(example))
    except (RuntimeError, ValueError):
        own, keras_own = (getattr(owner, _STEPS[kind]) for owner in (type(model), keras.Model))
        if own is keras_own or private.unbuilt_parts(model):
            raise


def _results(model: Any) -> Any:
    """What a model's metrics have come to. Outside of a step TensorFlow reads a variable on a mesh
    as it lies, and does not compute with that and ordinary tensors."""
    known = metric_states(model) if tf.executing_eagerly() else []
    read = [(v, v.value.whole()) for v in known if isinstance(v.value, MeshVariable)]
    with keras.StatelessScope(state_mapping=read) if read else nullcontext():
        return type(model).get_metrics_result(model)


def report_draws(model: Any) -> None:
    """Log one line where random numbers are drawn on a mesh: DTensor has each device draw for its
    part of what is split."""
    drawing = drawing_layers(model)
    if drawing:
        logger.info(
            "%s draws on each device of the mesh by itself, so that masks and noise are not those "
            "of one device. Use 'mirrored' for those", ", ".join(drawing),
        )  # fmt: skip


def _report_draws_of(graph: Any) -> None:
    """Log one line where a step draws by operations of TensorFlow's own."""
    drawn = draws_in(graph)
    if drawn:
        warn_once(
            "TensorFlow draws in a step on each device of the mesh by itself, so that masks and "
            f"noise are not those of one device. Received: {', '.join(drawn)}. Use 'mirrored' and "
            "keras.random for those"
        )


def _tensor(x: Any) -> Any:
    return None if x is None else tf.convert_to_tensor(x)


@final
class Traced:
    """A function of DTensors, traced for each of their shapes; or once for all lengths of a batch
    where it may not know that they are of one."""

    def __init__(
        self, function: Callable[..., Any], placement: MeshPlacement, *, one_length: bool = True
    ) -> None:
        self._function = function
        self._placement = placement
        self._one_length = one_length
        self._graphs: dict[Any, Any] = {}

    def __call__(self, *laid: Any) -> Any:
        specs = private.tree.map_structure(partial(spec_of, self._one_length), laid)
        key = repr(specs)  # a bare tensor and a tuple of one are traced apart
        if key not in self._graphs:
            graph = tf.function(self._trace, jit_compile=False, input_signature=specs)
            traced = graph.get_concrete_function()
            _check_captured(traced.graph)
            _check_conditions(traced.graph)
            if not _drawing_told.get():
                _report_draws_of(traced.graph)
            traced.set_external_captures([*map(self._placement.constant, traced.captured_inputs)])
            self._graphs[key] = graph
        with without_memory_pass():
            return self._graphs[key](*laid)

    def _trace(self, *batch: Any) -> Any:
        with value_set(stepping, True), writing_once():
            return self._function(*batch)


def compiled(
    function: Callable[..., Any], placement: MeshPlacement, kind: str, *, one_length: bool = True
) -> Callable[..., Any]:
    """From whole batches what `function` gives, as ordinary tensors. kind: what the ranks call it
    to one another."""
    traced = Traced(function, placement, one_length=one_length)

    def call(*batch: Any) -> Any:
        with explained():
            placement.consistency.step(kind)
            return placement.whole(traced(*placement.batch(batch)))

    return call


def _check_captured(graph: Any) -> None:
    """Refuse variables that do not lie on the mesh: each device would have its own."""
    if foreign := [v.name for v in graph.variables if not isinstance(v, MeshVariable)]:
        raise Unsupported(
            "A step on a mesh uses variables that dream has not laid out. Received: "
            f"{', '.join(foreign)}. Make them weights of the model (add_weight), or use 'mirrored'."
        )


def _check_conditions(graph: Any) -> None:
    """Refuse what ends TensorFlow's process, by a segmentation fault."""
    chosen = [op for op in graph.get_operations() if op.type == "SelectV2"]
    if any(op.inputs[0].shape.rank == 0 and op.outputs[0].shape.rank for op in chosen):
        raise Unsupported(
            "TensorFlow cannot choose by one condition for all elements on a mesh. Received: "
            "tf.where or keras.ops.where with a condition without dims, of tensors that have some. "
            "Give it tf.fill(tf.shape(x), condition), or use 'mirrored'."
        )


@contextmanager
def explained() -> Iterator[None]:
    """DTensor's refusals in dream's words."""
    try:
        with translated():
            yield
    except (tf.errors.UnknownError, tf.errors.InvalidArgumentError) as error:
        text = str(error)
        if not any(words in text for words in ("layout propagation", "ComputeLayout", "SPMD")):
            raise
        found = re.search(r'"?\'?tf\.(\w+)', text)
        operation = found.group(1) if found else "an operation"
        raise Unsupported(
            f"TensorFlow cannot split this operation over a mesh. Received: {operation}. "
            f"{text.strip().splitlines()[0]} Use 'mirrored', or model_parallel with "
            "split='pipeline', which run every operation."
        ) from error


def in_micros(
    part: Part,
    finish: Callable[..., Any],
    placement: MeshPlacement,
    most: int,
    *,
    one_length: bool = True,
) -> Callable[..., Any]:
    """From whole batches what `finish` gives of the sums of what `part` does, as ordinary tensors:
    a call for each micro-batch, and one that applies their sum. DTensor cannot lay out a loop; and
    of micro-batches that are written out in one graph it runs many at a time, and saves no memory.

    most: micro-batches of a batch, each with a sample at least.
    """
    parts = Traced(part, placement, one_length=one_length)
    add = Traced(lambda *given: _added(given), placement)
    finished = Traced(finish, placement)

    def call(*batch: Any) -> Any:
        rows = int(leaves(batch)[0].shape[0])
        micros = min(max(rows, 1), most)
        sums: list[Any] = []
        with explained():
            placement.consistency.step("train")
            for micro in range(micros):
                start, stop = micro * rows // micros, (micro + 1) * rows // micros
                rows_here = partial(_cut, start, stop)
                some = placement.batch(private.tree.map_structure(rows_here, batch))
                share = np.float64((stop - start) / max(rows, 1))
                found = parts(*some, *placement.batch((share, np.float32(rows))))
                sums = list(add(*sums, *found)) if sums else list(found)
            return placement.whole(finished(*sums))

    return call


def _cut(start: int, stop: int, x: Any) -> Any:
    return None if x is None else x[start:stop]


def _added(given: tuple[Any, ...]) -> list[Any]:
    half = len(given) // 2
    return [a + b for a, b in zip(given[:half], given[half:], strict=True)]
