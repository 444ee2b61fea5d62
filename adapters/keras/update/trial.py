"""A model is tried on rows of a batch that is made up, as replicas have parts of a batch: what it
draws is alike for all rows, and whatever it changes is undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar, final
from weakref import WeakKeyDictionary

import keras
import numpy as np
from keras import ops, tree

from dream._errors import Unsupported
from dream._log import warn_once
from dream.adapters.keras import consistency, hooks, kinds, losses, private
from dream.adapters.keras.data.share import BatchShare
from dream.adapters.keras.engine import Array, Engine
from dream.adapters.keras.randomness import sizes
from dream.adapters.keras.randomness.draws import ShareRows, drawn_by
from dream.adapters.keras.randomness.sizes import DrawnSizes
from dream.adapters.keras.randomness.trial_draws import OneRow, generators_kept
from dream.adapters.keras.update import batch_norm
from dream.adapters.keras.update.private import assigning_trained
from dream.adapters.keras.update.script_state import kept

T = TypeVar("T")
CUT = 4  # where what is uneven begins, too
PARTS = slice(CUT), slice(CUT, None)
DRAWS = 2
"""Times that rows with random numbers of their own are tried: by chance an order that is drawn is
one within each part."""
_CLOSE, _SPARE = 1e-3, 1e-6
"""How far apart two values of one batch may be, in times of their norm; and in times of the largest
norm beside it, of what is 0 but for rounding."""
_NUDGE = np.float32(1 + 1e-5)
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


def nudged(batch: Any) -> Any:
    """Have inputs be a little larger. What hangs on that, as gradients do by attention's scores of
    some millions, hangs on rounding too."""
    x, *rest = batch if isinstance(batch, tuple) else (batch,)
    larger = tree.map_structure(lambda a: a if a is None or a.dtype.kind != "f" else a * _NUDGE, x)
    return (larger, *rest) if isinstance(batch, tuple) else larger


def is_close(a: Array, b: Array) -> bool:
    return are_close([a], [b])


def are_close(found: Sequence[Array], others: Sequence[Array], times: float = 1.0) -> bool:
    """Whether values of one batch are those of another, pair by pair. What is 0 but for rounding,
    as the gradient of a key's bias in attention is, is rounded as the largest beside it are.
    times: how much farther apart they may be than in an ordinary batch."""
    sizes = [float(np.linalg.norm(a)) for a in found]
    spare = _SPARE * max([1.0, *sizes])
    return all(
        float(np.linalg.norm(a - b)) <= times * (_CLOSE * size + spare)
        for a, b, size in zip(found, others, sizes, strict=True)
    )


def are_steady(
    found: Sequence[Sequence[Array]], nudged: Sequence[Sequence[Array]], times: float = 1.0
) -> bool:
    """Whether values of a batch, and of its parts, are the nudged one's; others tell nothing."""
    return all(are_close(*pair, times) for pair in zip(found, nudged, strict=True))


def take(
    model: Any, engine: Engine, batch: Any, rows: slice, run: Callable[[Any], T], *,
    draw: int | None = None,
) -> T:  # fmt: skip
    """Return what comes of a model's run on rows of a made-up batch; all its changes are undone.
    In double precision, that rounding tells nothing; in single where operations of the script's own
    take no other. draw: which of `DRAWS` each row has its random numbers of, where it has its own,
    which is for models whose draws are known."""

    def within(policy: keras.DTypePolicy) -> T:
        with _rehearsed(model, engine, rows, policy, draw):
            return run(tree.map_structure(_computed_by(policy), kinds.cut(batch, rows)))

    def apart(policy: keras.DTypePolicy) -> T:
        found: T = engine.apart(lambda: within(policy))
        return found

    try:
        return apart(_Double("float32"))
    except Exception:
        return apart(keras.DTypePolicy("float32"))


def _computed_by(policy: keras.DTypePolicy) -> Callable[[Any], Any]:
    def computed(x: Any) -> Any:
        is_float = x is not None and "float" in keras.backend.standardize_dtype(x.dtype)
        return ops.cast(x, policy.compute_dtype) if is_float else x

    return computed


@contextmanager
def _rehearsed(
    model: Any, engine: Engine, rows: slice, policy: keras.DTypePolicy, draw: int | None
) -> Iterator[None]:
    count = len(range(kinds.ROWS)[rows])
    drawn = drawn_by_trials(model)
    if draw is not None:
        note: Callable[..., None] = _note_nothing
        first = draw * kinds.ROWS + rows.indices(kinds.ROWS)[0]
        share = BatchShare(float(count), float(DRAWS * kinds.ROWS), first=first, rows=count)
        draws: ShareRows = engine.rows_of(share)
    else:
        drawn.begin(count)
        note = partial(drawn.note, count)
        draws = OneRow(partial(drawn.note_draw, count), engine.generators)
    with ExitStack() as scopes:
        scopes.enter_context(kept(model))
        scope = scopes.enter_context(private.rehearsal(model))
        for each in (
            assigning_trained(model, scope), _plain_variables_kept(model),
            _computing_by(policy, model), hooks.double_precision(), generators_kept(engine),
            drawn_by(draws), sizes.known(None if draw is None else drawn, ordered=True),
            batch_norm.standing_still(note), losses.placed(_MeanOfRows(engine, count)),
            engine.trying(model, rows, kinds.ROWS),
        ):  # fmt: skip
            scopes.enter_context(each)
        yield


def _note_nothing(shape: Sequence[Any]) -> None:
    """Draws are known by now."""


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


@final
class _Double(keras.DTypePolicy):  # type: ignore[misc]  # untyped
    """Computes in double precision by variables that are what they are."""

    @property
    def compute_dtype(self) -> str:
        return "float64"


@contextmanager
def _computing_by(policy: keras.DTypePolicy, model: Any) -> Iterator[None]:
    """Inside, layers that compute in floating point do so by this policy."""
    before = [
        (layer, layer.dtype_policy)
        for layer in private.layers_of(model)
        if "float" in layer.compute_dtype and layer.dtype_policy.quantization_mode is None
    ]
    try:
        for layer, _ in before:
            layer.dtype_policy = policy
        yield
    finally:
        for layer, own in before:
            layer.dtype_policy = own


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
