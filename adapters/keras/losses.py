"""What a compiled loss is a mean over, or a sum, and so what a part's value of it counts for.

A part's value is scaled such that the mean over the parts, each weighed by its samples, is the loss
over the global batch: nothing is done for a mean over samples; a sum counts whole; what is divided
by a mask or by weights counts by what it was divided by, which all parts add up first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, final
from weakref import WeakKeyDictionary

import keras
import numpy as np
from keras import ops

from dream._errors import Unsupported
from dream._log import warn_once
from dream._patches import value_set
from dream.adapters.keras import private
from dream.adapters.keras.data.share import BatchShare
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.kinds import CUTS, ROWS, Kind, cut, kinds_of, made_up
from dream.adapters.keras.randomness.draws import drawn_by
from dream.adapters.keras.randomness.trial_draws import OneRow, generators_kept
from dream.adapters.keras.update import batch_norm
from dream.adapters.keras.update.private import list_labels
from dream.adapters.keras.update.script_state import kept


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
        one = ops.cast(1.0, "float64")
        return self._scaled(value, one, self._share.fraction)

    def by_count(self, value: Any, count: Any) -> Any:
        if not self._whole:
            raise Unsupported(
                "The loss is a mean over what is unmasked, or by its weights, of which "
                "micro-batches hold unequal numbers. Received: accumulate= with such a loss. "
                "Remove accumulate."
            )
        counts = ops.stop_gradient(ops.cast(count, "float64"))
        (mine,) = self.engine.keep(self._share, [counts])
        (everyone,) = self.engine.total([mine])
        return self._scaled(value, mine, everyone * self._share.fraction)

    def _scaled(self, value: Any, by: Any, over: Any) -> Any:
        factor = ops.divide_no_nan(by, ops.cast(over, "float64"))
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
    list_labels(model, lambda: _place.get() is not None)


@final
class _Weighed:
    """A loss that scales its value for what it counts in the step that is going on."""

    def __init__(self, loss: Any, strict: bool) -> None:
        self._loss = loss
        self._strict = strict
        self._kind: Kind | None = None
        self._gives_number = False
        self._mask: Any = None
        self._keeps_nothing = _is_kerass(loss)
        self._of_rows = self._keeps_nothing and not _compares_rows(loss)
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
        place = _place.get()
        if place is None:
            return self._loss(y_true, y_pred, sample_weight)
        weights = None if sample_weight is None else ops.copy(sample_weight)
        value = self._loss(y_true, y_pred, weights)
        mask = self._mask_of(y_pred)
        if not self._keeps_nothing:
            self._keeps_nothing = True
            with tried_alone(place.engine, self._loss):
                self._tell_kept(y_true, y_pred)
        if self._calls_itself or self._gives_number:
            if self._kind is None:
                with tried_alone(place.engine, self._loss):
                    self._kind = self._tried(y_true, y_pred, sample_weight)
            return place.as_sum(value) if self._kind == "sum" else value
        if not self._of_rows:
            self._of_rows = True
            with tried_alone(place.engine, self._loss):
                self._tell_coupled(y_true, y_pred)
        reduction = self._loss.reduction
        if reduction == "sum":
            return place.as_sum(value)
        counts_weights = reduction == "mean_with_sample_weight"
        if counts_weights and (mask is not None or sample_weight is not None):
            weights = private.masked_weights(sample_weight, mask, value.dtype, reduction)
            return place.by_count(value, ops.sum(weights))
        if mask is None:
            return value
        worth = place.by_count(ops.cast(1.0, value.dtype), ops.sum(ops.cast(mask, "float32")))
        if weights is not None and place.engine.written(weights):
            # By the mask, and metrics are weighed by them next.
            sample_weight[...] = weights * ops.cast(worth, weights.dtype)
        return value * worth

    def _tell_coupled(self, *like: Any) -> None:
        """Say if a sample's value depends on the others of its batch."""
        if any(
            kind in ("mean", "unknown")
            for kind in kinds_of(lambda *b: [self._loss.call(*b)], like, "sum")
        ):
            said = (
                f"The loss {self._name!r} gives a sample another value in a part of its batch: it "
                "couples the samples, which replicas share. Received: values of all rows, such as "
                "a batch's largest, in it. Take them from the whole data"
            )
            if self._strict:
                raise Unsupported(f"{said}.")
            warn_once(f"{said}; each replica takes those of its share")

    def _tell_kept(self, *like: Any) -> None:
        """Say if the loss changes variables of its own by its batch."""
        batch = made_up(like, classes=2)
        try:
            whole, *parts = (_changed(self._loss.call, cut(batch, slice(n))) for n in (ROWS, *CUTS))
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
            warn_once(said)

    @property
    def _name(self) -> str:
        return str(getattr(self._loss, "name", type(self._loss).__name__))

    def _tried(self, *like: Any) -> Kind:
        """Find out what the loss is, on made-up batches: the same on every rank."""
        (kind,) = kinds_of(lambda *batch: [self._loss(*batch)], like)
        say(f"The loss {self._name!r}", kind, self._strict)
        return kind


_Value = Callable[[Any], Any]
_Function = Callable[[_Value | None, bool], Callable[..., Any]]
_kinds: WeakKeyDictionary[Any, dict[int, list[Kind]]] = WeakKeyDictionary()
"""Of models, by how many there are: what their own compute_loss gives, or the losses that their
layers add."""


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

        def anew(*batch: Any) -> list[Any]:
            with private.rehearsal(model):  # seeds go on in what it changes
                return [own(model, **dict(zip(names, batch, strict=True)))]

        (kind,) = _kinds_once(
            model, engine, like, 1, f"{type(model).__name__}.compute_loss", lambda *_: anew
        )
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
        model, engine, (x,), len(added), f"What layers of {model.name!r} add to the loss",
        lambda value, training: lambda x: private.added_by(model, x, value, training), value,
    )  # fmt: skip
    for kind, each in zip(kinds, added, strict=True):
        if kind == "sum":
            lacking = lacking + ops.sum(place.as_sum(each) - each)
    return lacking


@contextmanager
def tried_alone(engine: Engine, tried: Any) -> Iterator[None]:
    """Inside, a loss is tried outside of the step: nothing is weighed, no draw is of its batch, nor
    is missing afterwards, no variable changes. tried: what has the function."""
    alone = engine.outside(), weighed(engine, None), drawn_by(None), keras.StatelessScope()
    with kept(tried), generators_kept(engine), alone[0], alone[1], alone[2], alone[3]:
        yield


def _kinds_once(
    model: Any, engine: Engine, like: tuple[Any, ...], count: int, what: str, function: _Function,
    value: _Value | None = None,
) -> list[Kind]:  # fmt: skip
    """Return what a function's numbers, so many of them, are, found out at first. function: of what
    gives variables' values, and whether in training, what gives those numbers for a batch."""
    known = _kinds.setdefault(model, {})
    if count not in known:

        def tried(value: _Value | None) -> list[Kind]:
            with tried_alone(engine, model), private.rehearsal(model, value):
                found = kinds_of(function(value, False), like)
            if len(found) != count or "unknown" in found:
                # Layers add others in training; what draws is another number each time.
                with (
                    tried_alone(engine, model),
                    private.rehearsal(model, value),
                    drawn_by(OneRow(lambda _: None, engine.generators)),
                    batch_norm.standing_still(lambda _: None),
                ):
                    again = _drawing_again(engine, function(value, len(found) != count))
                    found = kinds_of(again, like)
            return found if len(found) == count else ["unknown"] * count

        found = tried(value)
        known[count] = found if "zero" not in found else tried(partial(_begun, value))
        for kind in sorted(set(known[count])):
            say(what, kind, engine.update_options.strict)
    return known[count]


def _drawing_again(engine: Engine, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that draws the same each time, and leaves what is drawn next."""

    def again(*batch: Any) -> Any:
        with generators_kept(engine):
            return function(*batch)

    return again


def _begun(value: _Value | None, variable: Any) -> Any:
    """Return what a variable is, 1 for a number that is 0 as yet: a loss may be weighed by one that
    callbacks raise."""
    now = variable.value if value is None else value(variable)
    number = not variable.trainable and variable.shape == () and "float" in str(variable.dtype)
    return ops.ones_like(now) if number and not ops.convert_to_numpy(now) else now


def say(what: str, kind: Kind, strict: bool) -> None:
    """Say that something counts as a mean over samples, where it cannot be told what it is."""
    if kind not in _UNTOLD:
        return
    said = (
        f"{what} gives {_UNTOLD[kind]}. Received: a loss that replicas share. Return a value for "
        "each sample, have the model gather its outputs by strategy.communicator.all_gather where "
        "samples are held against each other, or use strategy.train_step with weight="
    )
    if strict:
        raise Unsupported(f"{said}.")
    warn_once(f"{said}; it counts as a mean over samples")


_UNTOLD = {
    "unknown": "one number for a batch, which is neither the mean nor the sum of what it gives for "
    "the batch's parts",
    "zero": "0 for every batch that it was tried on, of which nothing tells a mean over samples "
    "from a sum",
}


def _is_kerass(loss: Any) -> bool:
    """Whether a loss is one of Keras's own, whose values are each sample's."""
    computes = getattr(loss, "fn", None) or type(loss)
    return str(getattr(computes, "__module__", "")).startswith("keras.")


def _compares_rows(loss: Any) -> bool:
    """Whether a loss of Keras's own holds a batch's rows against each other."""
    return isinstance(loss, keras.losses.Circle) or getattr(loss, "fn", 0) is keras.losses.circle


def _changed(function: Any, batch: Any) -> list[Any]:
    """Return what a function sets variables to."""
    with keras.StatelessScope() as scope:
        function(*batch)
    return [np.array(ops.convert_to_numpy(v)) for v in scope.state_mapping.values()]
