"""A model is tried on rows of a batch that is made up, as replicas have parts of a batch: what it
draws is alike for all rows, and whatever it changes is undone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, final
from weakref import WeakKeyDictionary

import numpy as np
from keras import ops, tree

from dream._errors import Unsupported
from dream._log import warn_once
from dream.adapters.keras import consistency, kinds, losses, private
from dream.adapters.keras.engine import Array, Engine
from dream.adapters.keras.randomness.draws import drawn_by
from dream.adapters.keras.randomness.sizes import DrawnSizes
from dream.adapters.keras.randomness.trial_draws import OneRow, generators_kept
from dream.adapters.keras.update import batch_norm
from dream.adapters.keras.update.script_state import kept

CUT = 4  # where what is uneven begins, too
PARTS = slice(CUT), slice(CUT, None)
_CLOSE = {"float16": 0.1, "bfloat16": 0.1}
"""How far apart two values of one batch may be, in times of their norm, by a model's dtype."""
_SPARE = {"float16": 1e-3, "bfloat16": 1e-3}
"""And in times of the largest norm beside it, of what is 0 but for rounding."""
_tried: WeakKeyDictionary[Any, DrawnSizes] = WeakKeyDictionary()


def drawn_by_trials(model: Any) -> DrawnSizes:
    """Return what a model has drawn where it was tried."""
    if model not in _tried:
        _tried[model] = DrawnSizes()
    return _tried[model]


def say(said: str, engine: Engine) -> None:
    if engine.update_options.strict:
        raise Unsupported(f"{said}.")
    warn_once(said)


def widened(batch: Any) -> Any:
    """Have inputs lie about zero: targets stay between 0 and 1."""
    if not isinstance(batch, tuple):
        return batch
    x = tree.map_structure(lambda a: a if a is None or a.dtype.kind != "f" else 8 * a - 4, batch[0])
    return (x, *batch[1:])


def is_close(a: Array, b: Array, model: Any) -> bool:
    return are_close([a], [b], model)


def are_close(
    found: Sequence[Array], others: Sequence[Array], model: Any, times: float = 1.0
) -> bool:
    """Whether values of one batch are those of another, pair by pair. What is 0 but for rounding,
    as the gradient of a key's bias in attention is, is rounded as the largest beside it are.
    times: how much farther apart they may be than in an ordinary batch."""
    close = times * _CLOSE.get(str(model.compute_dtype), 1e-3)
    sizes = [float(np.linalg.norm(a)) for a in found]
    spare = _SPARE.get(str(model.compute_dtype), 1e-6) * max([1.0, *sizes])
    return all(
        float(np.linalg.norm(a - b)) <= close * size + spare
        for a, b, size in zip(found, others, sizes, strict=True)
    )


@contextmanager
def rehearsed(model: Any, engine: Engine, rows: slice) -> Iterator[None]:
    """Inside, a model is tried on rows of a made-up batch; all changes are undone."""
    count = len(range(kinds.ROWS)[rows])
    drawn = drawn_by_trials(model)
    drawn.begin(count)
    note = partial(drawn.note, count)
    with ExitStack() as scopes:
        for scope in (
            kept(model), private.rehearsal(model), _plain_variables_kept(model),
            generators_kept(engine),
            drawn_by(OneRow(note, engine.generators)), batch_norm.standing_still(note),
            losses.placed(_MeanOfRows(engine, count)), engine.trying(model, rows, kinds.ROWS),
        ):  # fmt: skip
            scopes.enter_context(scope)
        yield


def array(tensor: Any) -> Array:
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


@contextmanager
def _plain_variables_kept(model: Any) -> Iterator[None]:
    """Inside, variables of the framework's own that layers hold may be assigned."""
    plain = consistency.plain_variables(model)
    values = [(v, np.array(ops.convert_to_numpy(v))) for v in plain]
    try:
        yield
    finally:
        for variable, value in values:
            consistency.put(variable, value)
