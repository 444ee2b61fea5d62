"""What only its user knows of a step: a train_step, states that a call changes, metrics of one's
own. Tried once on a small batch and on its two parts, they tell whether replicas can share them:
gradients and states as means over samples, metrics as sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, final
from weakref import WeakKeyDictionary

import keras
import numpy as np
from keras import ops, tree

from dream._errors import Unsupported
from dream.adapters.keras import consistency, losses, optimizer, private
from dream.adapters.keras.engine import Array, Engine
from dream.adapters.keras.randomness.draws import ShareRows, drawn_by, once
from dream.adapters.keras.randomness.sizes import DrawnSizes
from dream.adapters.keras.update import batch_norm
from dream.data import generators

_CUT = 4  # where what is uneven begins, too
_CLOSE = {"float16": 0.1, "bfloat16": 0.1}
"""How far apart two values of one batch may be, in times of their norm, by a model's dtype."""
_tried: WeakKeyDictionary[Any, DrawnSizes] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class _Found:
    """What a step made of a batch: gradients that optimizers were given, and by variable what
    became of states, and by how much metrics grew."""

    gradients: list[Array]
    states: list[Array]
    gains: list[Array]


def check(model: Any, engine: Engine, batch: Any) -> DrawnSizes:
    """Say once of a model what replicas do not share as one device would have it; return what its
    steps draw. batch: of tensors, or of their shapes and dtypes. To be called where a step
    draws."""
    if model not in _tried:
        _tried[model] = DrawnSizes()
        _check(model, engine, batch)
        _check_sizes(model, engine)
    return _tried[model]


def check_call(model: Any, engine: Engine, inputs: Any) -> None:
    """Say of a model that comes in parts if its call couples samples. inputs: or KerasTensors."""
    _tried.setdefault(model, DrawnSizes())
    _check_call(model, engine, (inputs,))


def _check(model: Any, engine: Engine, batch: Any) -> None:
    custom = type(model).train_step is not keras.Model.train_step
    states, metrics = _states_of(model), _metrics_of(model)
    _check_call(model, engine, batch)
    if not (custom or states or metrics):
        return
    found = _found(model, engine, batch, states, [v for m in metrics for v in m.variables])
    known = found is not None and bool(found[0].gradients)
    tells = custom and (known or not engine.pooled)  # devices of one process cannot step apart
    adds_up = known and _add_up([each.gradients for each in found or []], model)
    if tells and not (adds_up and _adds_up_at_extremes(model, engine, batch)):
        tried = "no mean of its parts'" if known else "not known, as made-up batches bring it none"
        _say(
            f"{type(model).__name__}.train_step is shared by replicas, whose gradients count as "
            f"those of a mean over samples. Received: gradients of a batch that are {tried}, as "
            "where a loss is a sum, is divided by a mask, couples samples, or hangs on a metric, "
            "or where gradients are clipped or left out by their size. Compute such a loss "
            "by self.compute_loss with Keras's reduction, mask or sample_weight, which are known, "
            "or divide by the batch's samples; have the optimizer clip (clipnorm=)", engine,
        )  # fmt: skip
    for place, state in enumerate(states if found else []):
        if not _add_up([[each.states[place]] for each in found or []], model):
            _say(
                f"{state.path} is a state that the model's call changes by its batch, as no mean "
                "over samples does: all replicas hold the mean of what their shares make of it. "
                "Received: a state that a part of a batch changes otherwise, such as a largest "
                "value or a count. Let it follow a mean over the batch", engine,
            )  # fmt: skip
    gains = [each.gains for each in found or []]
    if gains and not _add_up(gains, model, of_first=1.0, of_second=1.0):
        names = ", ".join(metric.name for metric in metrics)
        _say(
            f"The metric {names} is more than a sum over samples, and replicas add up what they "
            "have of it. Received: a state that a batch changes otherwise than its parts do "
            "together, such as a largest value. Keep sums and counts in it", engine,
        )  # fmt: skip


def _adds_up_at_extremes(model: Any, engine: Engine, batch: Any) -> bool:
    """Whether gradients of a batch that is far larger in its second part, where metrics have other
    values too, are a mean of its parts': not where they are clipped, or left out, by their size.
    True where that cannot be found out."""
    made_up = _stretched(_widened(losses.made_up(batch, classes=2)))

    def take(rows: slice, metrics: float) -> list[Array]:
        found: _Found = engine.apart(
            lambda: _of_rows(model, engine, made_up, rows, (), (), metrics)
        )
        return found.gradients

    try:
        found = [take(slice(None), 0.0), take(slice(_CUT), 1.0), take(slice(_CUT, None), 1.0)]
    except Exception:
        return True
    known = all(np.isfinite(array).all() for arrays in found for array in arrays)
    return not known or _add_up(found, model)


def _stretched(batch: Any) -> Any:
    """The same, uneven, but for its sample weights."""
    if not isinstance(batch, tuple):
        return losses.uneven(batch)
    return (*losses.uneven(batch[:2]), *batch[2:])


def _check_sizes(model: Any, engine: Engine) -> None:
    """Say of a step that calls models on rows of its batch together with others."""
    if _tried[model].settle():
        _say(
            f"A step of {type(model).__name__} draws for rows of its batch, or normalises them, "
            "together with others of a number that the script has written down: on several "
            "replicas those are not one device's. Received: rows that grow with the batch, and "
            "not by its samples. Call layers on each by themselves, or draw as many rows as the "
            "batch has", engine,
        )  # fmt: skip


def _check_call(model: Any, engine: Engine, batch: Any) -> None:
    """Say of a call that is not made of Keras's layers alone if it couples samples."""
    if not (private.has_call(model) and private.has_own_parts(model)):
        return
    inputs = batch[0] if isinstance(batch, tuple) else batch
    made_up = _widened((losses.made_up(inputs, classes=2),))
    if not any(_couples(model, engine, batch) for batch in (made_up, losses.uneven(made_up))):
        return
    _say(
        f"The call of {model.name!r} gives a sample another output in a part of its batch: it "
        "couples the samples, which replicas share. Received: layers or operations in which a "
        "sample's output hangs on the others, such as a mean over the batch. Normalise by "
        "keras.layers.BatchNormalization, which sees the whole batch, or by the sample alone",
        engine,
    )  # fmt: skip


def _couples(model: Any, engine: Engine, made_up: Any) -> bool:
    """Whether a part of a batch has other outputs. False where that cannot be found out."""

    def call(rows: slice) -> list[Array]:
        def run() -> list[Array]:
            with _rehearsed(model, engine, rows):
                (part,) = _cut(made_up, rows)
                return [_array(x) for x in tree.flatten(model(part, training=True))]

        found: list[Array] = engine.apart(run)
        return found

    try:
        whole, again = call(slice(None)), call(slice(None))
        parts = zip(call(slice(_CUT)), call(slice(_CUT, None)), strict=True)
        joined = [np.concatenate(pair) for pair in parts]
    except Exception:
        return False  # it takes nothing that is made up
    draws = any(not np.array_equal(a, b) for a, b in zip(whole, again, strict=True))
    known = all(np.isfinite(array).all() for array in (*whole, *joined))
    return known and not (
        draws or all(_is_close(a, b, model) for a, b in zip(whole, joined, strict=True))
    )


def _say(said: str, engine: Engine) -> None:
    if engine.knobs.strict:
        raise Unsupported(f"{said}.")
    once(said)


def _states_of(model: Any) -> list[Any]:
    """Return the states that replicas average, but for BatchNorm's, which are known."""
    known = {id(v) for layer in batch_norm.layers_of(model) for v in layer.variables}
    return [v for v in consistency.statistics_of(model) if id(v) not in known]


def _metrics_of(model: Any) -> list[Any]:
    """Return the metrics that are not Keras's."""
    found = private.leaf_metrics(model.metrics)
    return [each for each in found if not type(each).__module__.startswith("keras.")]


def _found(
    model: Any, engine: Engine, batch: Any, states: Sequence[Any], metrics: Sequence[Any]
) -> list[_Found] | None:
    """Return what comes of the whole and of its two parts; None where the step takes no batch that
    is made up."""
    made_up = _widened(losses.made_up(batch, classes=2))

    def take(rows: slice) -> _Found:
        found: _Found = engine.apart(
            lambda: _of_rows(model, engine, made_up, rows, states, metrics)
        )
        return found

    try:
        return [take(rows) for rows in (slice(None), slice(_CUT), slice(_CUT, None))]
    except Exception:
        return None


def _widened(batch: Any) -> Any:
    """Have inputs lie about zero: targets stay between 0 and 1."""
    if not isinstance(batch, tuple):
        return batch
    x = tree.map_structure(lambda a: a if a is None or a.dtype.kind != "f" else 8 * a - 4, batch[0])
    return (x, *batch[1:])


def _add_up(
    found: Sequence[Sequence[Array]],
    model: Any,
    of_first: float = _CUT / losses.ROWS,
    of_second: float = 1 - _CUT / losses.ROWS,
) -> bool:
    """Whether the whole's values are what the parts' add up to."""
    whole, first, second = found
    return len(whole) == len(first) == len(second) and all(
        _is_close(a, of_first * b + of_second * c, model)
        for a, b, c in zip(whole, first, second, strict=True)
    )


def _is_close(a: Array, b: Array, model: Any) -> bool:
    close = _CLOSE.get(str(model.compute_dtype), 1e-3)
    return float(np.linalg.norm(a - b)) <= close * float(np.linalg.norm(a)) + 1e-6


def _of_rows(
    model: Any,
    engine: Engine,
    made_up: Any,
    rows: slice,
    states: Sequence[Any],
    metrics: Sequence[Any],
    start: float | None = None,
) -> _Found:
    """Take the step on rows of a batch; all its changes are undone. start: values of all
    metrics; None for those that they have."""
    with _rehearsed(model, engine, rows), optimizer.holding_scope(1.0) as held:
        for variable in [] if start is None else consistency.metric_states(model):
            variable.assign(ops.full_like(variable.value, start))
        before = [_array(v.value) for v in metrics]
        type(model).train_step(model, _cut(made_up, rows))
        return _Found(
            [_array(g) for update in held for g in update.gradients if g is not None],
            [_array(v.value) for v in states],
            [_array(v.value) - old for v, old in zip(metrics, before, strict=True)],
        )


def _cut(made_up: Any, rows: slice) -> Any:
    return tree.map_structure(
        lambda a: None if a is None else ops.convert_to_tensor(a[rows]), made_up
    )


@contextmanager
def _rehearsed(model: Any, engine: Engine, rows: slice) -> Iterator[None]:
    """Inside, a model is tried on rows of a made-up batch; all changes are undone."""
    count = len(range(losses.ROWS)[rows])
    drawn = _tried[model]
    drawn.begin(count)
    note = partial(drawn.note, count)
    with ExitStack() as tried:
        for scope in (
            private.rehearsal(model), _plain_variables_kept(model), _generators_kept(engine),
            drawn_by(_OneRow(note)), batch_norm.standing_still(note),
            losses.placed(_MeanOfRows(engine, count)), engine.drawing_part(rows, losses.ROWS),
        ):  # fmt: skip
            tried.enter_context(scope)
        yield


def _array(tensor: Any) -> Array:
    found: Array = np.array(ops.convert_to_numpy(ops.cast(tensor, "float32")))
    return found


@final
class _MeanOfRows(losses.LossPlace):
    """Has losses that dream knows be means over samples, whatever they are: in a step their parts
    are weighed for it."""

    def __init__(self, engine: Engine, rows: int) -> None:
        self.engine = engine
        self._rows = rows

    def as_sum(self, value: Any) -> Any:
        return value / self._rows

    def by_count(self, value: Any, count: Any) -> Any:
        return value * ops.cast(ops.stop_gradient(count), value.dtype) / self._rows


@final
class _OneRow(ShareRows):
    """Draws one row, which all samples have: so parts draw what the whole does."""

    def __init__(self, note: Callable[[Sequence[Any]], None]) -> None:
        """note: told of each shape."""
        self._note = note

    def dims(self, shape: Any) -> Sequence[Any]:
        if not hasattr(shape, "dtype"):
            return list(shape)
        if len(shape.shape) == 1 and "int" in keras.backend.standardize_dtype(shape.dtype):
            return [int(size) for size in ops.convert_to_numpy(shape)]
        return list(shape.shape)

    def counts(self, dims: Sequence[Any]) -> bool:
        self._note(dims)
        return True

    def whole(self, length: Any) -> Any:
        return 1

    def take(self, tensor: Any, length: Any) -> Any:
        return ops.repeat(tensor, int(length), axis=0)

    def spread(self, tensor: Any, length: Any) -> Any:
        return ops.ones_like(tensor[:1])

    def dropout(
        self, own: Callable[..., Any], inputs: Any, rate: Any, dims: Sequence[Any] | None, seed: Any
    ) -> Any:
        inner = ops.shape(inputs)[1:] if dims is None else dims[1:]
        return inputs * own(ops.ones((1, *inner), inputs.dtype), rate, None, seed)


@contextmanager
def _generators_kept(engine: Engine) -> Iterator[None]:
    """Inside, what is drawn is drawn again afterwards."""
    of_python, of_numpy = generators.python_state(), generators.numpy_state()
    own, shared = engine.generators.now(), private.shared_seed()
    try:
        yield
    finally:
        generators.go_on_in_python(of_python)
        generators.go_on_in_numpy(of_numpy)
        engine.generators.go_on_from(own)
        private.share_seed(shared)


@contextmanager
def _plain_variables_kept(model: Any) -> Iterator[None]:
    """Inside, variables of the framework's own that layers hold may be assigned."""
    plain = consistency.plain_variables(model)
    kept = [(v, np.array(ops.convert_to_numpy(v))) for v in plain]
    try:
        yield
    finally:
        for variable, value in kept:
            consistency.put(variable, value)
