"""What a compiled loss is a mean over, or a sum, and so what a part's value of it counts for.

A part's value is scaled such that the mean over the parts, each weighed by its samples, is the loss
over the global batch: nothing is done for a mean over samples; a sum counts whole; what is divided
by a mask or by weights counts by what it was divided by, which all parts add up first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Literal, final
from weakref import WeakKeyDictionary

import keras
import numpy as np
from keras import ops, tree

from dream._errors import Unsupported
from dream._patches import value_set
from dream.adapters.keras import private
from dream.adapters.keras.engine import BatchShare, Engine
from dream.adapters.keras.randomness.draws import drawn_by, once

Kind = Literal["mean", "sum", "unknown"]
_CUTS = (4, 2)
_DRAWS = 8
ROWS = 7
"""Rows of the made-up batches on which a loss is tried, and where they are cut."""


class LossPlace(ABC):
    """The batch that losses are computed of, in a step that is going on."""

    engine: Engine

    @abstractmethod
    def as_sum(self, value: Any) -> Any:
        """Scale what is a sum over samples."""

    @abstractmethod
    def by_count(self, value: Any, count: Any) -> Any:
        """Scale what was divided by `count` here, and on one device by the sum over all parts."""


@final
class SharePlace(LossPlace):
    """A part's share of a global batch.

    whole: whether it is all that this part has; a micro-batch is not.
    """

    def __init__(self, engine: Engine, share: BatchShare, *, whole: bool) -> None:
        self.engine = engine
        self._share = share
        self._whole = whole

    def as_sum(self, value: Any) -> Any:
        one = ops.cast(1.0, "float32")
        return self._scaled(value, one, self._share.fraction)

    def by_count(self, value: Any, count: Any) -> Any:
        if not self._whole:
            raise Unsupported(
                "The loss is a mean over what is unmasked, or by its weights, of which "
                "micro-batches hold unequal numbers. Received: accumulate= with such a loss. "
                "Remove accumulate."
            )
        counts = ops.stop_gradient(ops.cast(count, "float32"))
        (mine,) = self.engine.keep(self._share, [counts])
        (everyone,) = self.engine.total([mine])
        return self._scaled(value, mine, everyone * self._share.fraction)

    def _scaled(self, value: Any, by: Any, over: Any) -> Any:
        factor = ops.divide_no_nan(by, ops.cast(over, "float32"))
        return value * ops.cast(factor, value.dtype)


_place: ContextVar[LossPlace | None] = ContextVar("dream.keras_losses", default=None)


def weighed(
    engine: Engine, share: BatchShare | None, *, whole: bool = True
) -> AbstractContextManager[None]:
    """Inside, losses are those of a share; None for a batch that every part has."""
    return placed(None if share is None else SharePlace(engine, share, whole=whole))


def placed(place: LossPlace | None) -> AbstractContextManager[None]:
    """Inside, losses are those of a place."""
    return value_set(_place, place)


def adopt(model: Any, strict: bool) -> None:
    """Have the losses that a built model was compiled with scale their values in a step."""
    private.replace_losses(
        model, lambda loss: loss if isinstance(loss, _Weighed) else _Weighed(loss, strict)
    )


@final
class _Weighed:
    """A loss that scales its value for what it counts in the step that is going on."""

    def __init__(self, loss: Any, strict: bool) -> None:
        self._loss = loss
        self._strict = strict
        self._kind: Kind | None = None
        self._gives_number = False
        self._mask: Any = None
        self._of_rows = self._keeps_nothing = _is_kerass(loss)
        if not self._calls_itself:
            call = loss.call
            loss.call = lambda *args, **kwargs: self._seen(call(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._loss, name)

    @property
    def _calls_itself(self) -> bool:
        """Whether the class reduces by rules of its own."""
        return type(self._loss).__call__ is not keras.losses.Loss.__call__

    def _seen(self, values: Any) -> Any:
        self._gives_number = len(values.shape) == 0
        self._mask = private.mask_of(values)
        return values

    def _mask_of(self, y_pred: Any) -> Any:
        """Return the mask of what it has just counted: of outputs, and of classes it ignores."""
        given, own = private.mask_of(y_pred), self._mask
        return own if given is None else given if own is None else given & own

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        value = self._loss(y_true, y_pred, sample_weight)
        mask, place = self._mask_of(y_pred), _place.get()
        if place is None:
            return value
        if not self._keeps_nothing:
            self._keeps_nothing = True
            with tried_alone(place.engine):
                self._tell_kept(y_true, y_pred)
        if self._calls_itself or self._gives_number:
            if self._kind is None:
                with tried_alone(place.engine):
                    self._kind = self._tried(y_true, y_pred, sample_weight)
            return place.as_sum(value) if self._kind == "sum" else value
        if not self._of_rows:
            self._of_rows = True
            with tried_alone(place.engine):
                self._tell_coupled(y_true, y_pred)
        reduction = self._loss.reduction
        if reduction == "sum":
            return place.as_sum(value)
        counts_weights = reduction == "mean_with_sample_weight"
        if counts_weights and (mask is not None or sample_weight is not None):
            weights = private.masked_weights(sample_weight, mask, value.dtype, reduction)
            return place.by_count(value, ops.sum(weights))
        if mask is not None:
            return place.by_count(value, ops.sum(ops.cast(mask, "float32")))
        return value

    def _tell_coupled(self, *like: Any) -> None:
        """Say if a sample's value depends on the others of its batch."""
        if any(kind != "sum" for kind in kinds_of(lambda *b: [self._loss.call(*b)], like, "sum")):
            said = (
                f"The loss {self._name!r} gives a sample another value in a part of its batch: it "
                "couples the samples, which replicas share. Received: values of all rows, such as "
                "a batch's largest, in it. Take them from the whole data"
            )
            if self._strict:
                raise Unsupported(f"{said}.")
            once(f"{said}; each replica takes those of its share")

    def _tell_kept(self, *like: Any) -> None:
        """Say if the loss changes variables of its own by its batch."""
        batch = made_up(like, classes=2)
        try:
            whole, *parts = (
                _changed(self._loss.call, _cut(batch, slice(n))) for n in (ROWS, *_CUTS)
            )
        except Exception:
            return  # made-up values may be none that it takes
        if any(not np.allclose(a, b) for part in parts for a, b in zip(whole, part, strict=True)):
            said = (
                f"The loss {self._name!r} changes a variable of its own by its batch: replicas "
                "change theirs by their shares. Received: a variable that is another for a part of "
                "a batch. Change it between steps, by logs, which are global"
            )
            if self._strict:
                raise Unsupported(f"{said}.")
            once(said)

    @property
    def _name(self) -> str:
        return str(getattr(self._loss, "name", type(self._loss).__name__))

    def _tried(self, *like: Any) -> Kind:
        """Find out what the loss is, on made-up batches: the same on every rank."""
        (kind,) = kinds_of(lambda *batch: [self._loss(*batch)], like)
        if kind == "unknown":
            say(f"The loss {self._name!r}", self._strict)
        return kind


_Value = Callable[[Any], Any]
_kinds: WeakKeyDictionary[Any, list[Kind]] = WeakKeyDictionary()
"""Of models: what their own compute_loss gives, or the losses that their layers add."""


def compute_loss(model: Any, engine: Engine, *args: Any, **kwargs: Any) -> Any:
    """Compute the model's own loss, and scale what in it is neither a penalty nor of a compiled
    loss: all that a class computes by itself, or what layers add."""
    own, place = type(model).compute_loss, _place.get()
    if place is None:
        return own(model, *args, **kwargs)
    given = {**dict(zip(("x", "y", "y_pred", "sample_weight"), args, strict=False)), **kwargs}
    like = tuple(given.get(name) for name in ("x", "y", "y_pred", "sample_weight"))
    if own is not keras.Model.compute_loss:
        value = own(model, *args, **kwargs)
        names = ("x", "y", "y_pred", "sample_weight")
        (kind,) = _kinds_once(
            model, engine, like, f"{type(model).__name__}.compute_loss",
            lambda *batch: [own(model, **dict(zip(names, batch, strict=True)))],
        )  # fmt: skip
        return place.as_sum(value) if kind == "sum" else value
    value = own(model, *args, **kwargs)
    return value if like[0] is None else value + added_sums(model, engine, like[0])


def added_sums(model: Any, engine: Engine, x: Any, value: _Value | None = None) -> Any:
    """Return what the losses that layers add, sums over samples, lack in the step that is going on.

    x: as the model is given it. value: gives what a variable is while that is found out, where the
    model's own is not at hand.
    """
    added, place = private.added(model), _place.get()
    lacking = 0.0
    if not added or place is None:
        return lacking
    kinds = _kinds_once(
        model, engine, (x,), f"What layers of {model.name!r} add to the loss",
        lambda x: private.added_by(model, x, value), value,
    )  # fmt: skip
    for kind, each in zip(kinds, added, strict=False):
        if kind == "sum":
            lacking = lacking + ops.sum(place.as_sum(each) - each)
    return lacking


@contextmanager
def tried_alone(engine: Engine) -> Iterator[None]:
    """Inside, a loss is tried outside of the step: nothing is weighed, no draw is of its batch, no
    variable changes."""
    with engine.outside(), weighed(engine, None), drawn_by(None), keras.StatelessScope():
        yield


def _kinds_once(
    model: Any, engine: Engine, like: tuple[Any, ...], what: str, function: Any,
    value: _Value | None = None,
) -> list[Kind]:  # fmt: skip
    if model not in _kinds:
        with tried_alone(engine), private.rehearsal(model, value):
            _kinds[model] = kinds_of(function, like)
        if "unknown" in _kinds[model]:
            say(what, engine.knobs.strict)
    return _kinds[model]


def say(what: str, strict: bool) -> None:
    """Say that something counts as a mean over samples, since it cannot be told what it is."""
    said = (
        f"{what} gives one number for a batch, which is neither the mean nor the sum of what it "
        "gives for the batch's parts. Received: a loss that replicas share. Return a value for "
        "each sample, or use strategy.train_step with weight="
    )
    if strict:
        raise Unsupported(f"{said}.")
    once(f"{said}; it counts as a mean over samples")


def _is_kerass(loss: Any) -> bool:
    """Whether a loss is one of Keras's own, whose values are each sample's."""
    computes = getattr(loss, "fn", None) or type(loss)
    return str(getattr(computes, "__module__", "")).startswith("keras.")


def kinds_of(function: Any, like: tuple[Any, ...], failing: Kind = "unknown") -> list[Kind]:
    """Tell means over samples from sums over them, and both from anything else, by what a function
    gives for made-up batches that are cut in two.

    function: gives a list of tensors, whose sums count. like: tensors as it is given them, nested,
    or None. failing: what it is if it takes none that are made up, or draws at random.
    """
    widths = [int(x.shape[-1] or 2) for each in like[1:] for x in tree.flatten(each)
              if x is not None and len(x.shape) > 1]  # fmt: skip
    batch = _telling(function, like, max([2, *widths]))
    kinds = _kinds_for(function, batch, "unknown")
    if kinds is None:
        return [failing]
    at_extremes = _kinds_for(function, uneven(batch), None) or [None] * len(kinds)
    pairs = zip(kinds, at_extremes, strict=True)
    return [failing if a is None else a if b in (a, None) else "unknown" for a, b in pairs]


def _telling(function: Any, like: Any, classes: int) -> Any:
    """Make a batch up for which a function gives other numbers than 0, mean and sum of zeros alike,
    as a count of right answers may be; with labels of 0 and 1 later. The first one if none does."""
    for draw in range(_DRAWS):
        batch = made_up(like, classes, draw)
        if draw > _DRAWS // 2:
            labels = tree.map_structure(lambda a: None if a is None else a.round(), batch[1:2])
            batch = (batch[0], *labels, *batch[2:])
        with suppress(Exception):  # it may take none
            found = function(*_cut(batch, slice(None)))
            if all(np.any(ops.convert_to_numpy(x)) for x in found):
                return batch
    return made_up(like, classes)


def _kinds_for(function: Any, batch: Any, infinite: Kind | None) -> list[Kind | None] | None:
    """Tell by one batch; None of what is drawn at random, and where the function does not take
    such a batch. infinite: what it is of what is no number."""

    def values(rows: slice) -> list[float]:
        found = function(*_cut(batch, rows))
        return [float(np.sum(ops.convert_to_numpy(x))) for x in found]

    try:
        whole, again = values(slice(None)), values(slice(None))
        cuts = [(n, values(slice(n)), values(slice(n, None))) for n in _CUTS]
    except Exception:
        return None  # made-up values may be none that it takes
    if not np.array_equal(whole, again, equal_nan=True):
        return [None] * len(whole)
    parts = [[(n, a[place], b[place]) for n, a, b in cuts] for place in range(len(whole))]
    return [
        _kind(value, each) if np.isfinite([value, *(x for cut in each for x in cut)]).all()
        else infinite
        for value, each in zip(whole, parts, strict=True)
    ]  # fmt: skip


def _cut(batch: Any, rows: slice) -> Any:
    return tree.map_structure(
        lambda a: None if a is None else ops.convert_to_tensor(a[rows]), batch
    )


def _changed(function: Any, batch: Any) -> list[Any]:
    """Return what a function sets variables to."""
    with keras.StatelessScope() as scope:
        function(*batch)
    return [np.array(ops.convert_to_numpy(v)) for v in scope.state_mapping.values()]


def _kind(whole: float, cuts: Sequence[tuple[int, float, float]]) -> Kind:
    if all(_close(whole, (n * a + (ROWS - n) * b) / ROWS) for n, a, b in cuts):
        return "mean"
    return "sum" if all(_close(whole, a + b) for _, a, b in cuts) else "unknown"


def _close(found: float, expected: float) -> bool:
    return bool(np.isclose(found, expected, rtol=1e-4, atol=1e-6))


def made_up(like: Any, classes: int, seed: int = 0) -> Any:
    """Make a batch of `ROWS` rows up, the same on every rank. like: tensors, nested, or None.
    classes: whole numbers are below it."""
    draw = np.random.default_rng(seed)
    return tree.map_structure(lambda x: _made_up(x, draw, classes), like)


def uneven(batch: Any) -> Any:
    """Have the later rows of a batch be of another sign, and far larger: what is clipped, or left
    out, by its size or its sign is seen to be."""
    large = np.where(np.arange(ROWS) < max(_CUTS), 1.0, -1000.0)

    def stretched(a: Any) -> Any:
        if a is None or a.dtype.kind != "f":
            return a
        return a * large.reshape(-1, *(1,) * (a.ndim - 1)).astype(a.dtype)

    return tree.map_structure(stretched, batch)


def _made_up(like: Any, draw: np.random.Generator, classes: int) -> Any:
    if like is None:
        return None
    shape = (ROWS, *(3 if size is None else int(size) for size in like.shape[1:]))
    kind = keras.backend.standardize_dtype(like.dtype)
    if "float" in kind:
        return draw.uniform(0.05, 0.95, shape).astype(kind)
    return draw.integers(0, classes, shape).astype(kind)
