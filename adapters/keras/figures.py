"""What a step tells of itself: results of metrics, and figures of its own.

A metric's result that a step returns, under any name and however nested, is computed again once
the parts' states are added up; any other figure is taken for a mean over the part's samples.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any, final
from weakref import WeakKeyDictionary

import keras
from keras import tree

from dream._patches import value_set
from dream.adapters.keras import kinds, losses, private
from dream.adapters.keras.data.share import BatchShare
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.update import trial
from dream.adapters.keras.update.step_states import StepStates

_NEITHER = (
    "The metric {!r} gives one number for a batch, and replicas average those of their shares. "
    "Received: one that is neither the mean nor the sum of what it gives for the batch's parts, as "
    "a root, a ratio or a norm. Return a value for each sample, or keep sums in a "
    "keras.metrics.Metric"
)
_ZERO = (
    "The metric {!r} gives 0 for every batch that it was tried on, and replicas average what it "
    "gives for their shares. Received: one number for a batch, of which nothing tells a mean over "
    "samples from a sum. Return a value for each sample, or keep sums in a keras.metrics.Metric"
)
_SAID = {"unknown": _NEITHER, "zero": _ZERO}


@dataclass(frozen=True, slots=True)
class Updates:
    """What the numbers are, one for a batch, by which a step updates a metric. counts: whether what
    they weigh counts a batch's samples, as their number or a mask's sum does; None where nothing
    is said of that."""

    kind: kinds.Kind
    counts: bool | None = None

    def __or__(self, other: Updates) -> Updates:
        """Return what both are."""
        counts = {self.counts, other.counts} - {None}
        if self.kind != other.kind or len(counts) > 1:
            return Updates("unknown")
        return Updates(self.kind, next(iter(counts), None))


_SCALARS = (keras.metrics.Mean.update_state, keras.metrics.Sum.update_state)


@final
class StepFigures:
    """The results and figures of one step on a part's share."""

    def __init__(
        self, engine: Engine, share: BatchShare, step: str, states: StepStates | None = None
    ) -> None:
        """step: the name of the one that is taken. states: what metrics add up in it."""
        self.engine = engine
        self.share = share
        self.step = step
        self.states = StepStates(()) if states is None else states
        self.numbers: list[tuple[Any, Any, Any]] = []
        self._results: list[tuple[Any, Any]] = []

    def noting(self) -> AbstractContextManager[None]:
        """Inside, results that watched metrics give are noted."""
        return value_set(_noting, self)

    def note(self, metric: Any, result: Any) -> None:
        self._results.append((metric, result))

    def of_update(self, metric: Any, values: Any, weight: Any, *, tracks: bool) -> tuple[Any, Any]:
        """Return what a metric is updated by here, and what that weighs. One number for the whole
        batch counts once on one device: here for this part's share. tracks: whether this is Keras's
        own, of a loss, which it weighs by the batch's samples."""
        if not _is_scalar(values):
            return values, weight
        known: Updates | None = None
        if not tracks:
            self.numbers.append((metric, values, weight))
            known = _updates.get(metric, {}).get(self.step)
        if known is not None and known.kind == "sum":
            values = self._of_sum(metric, values)
        if weight is None:
            return values, self.share.fraction
        one = isinstance(weight, (int, float))
        counts = not one or (type(weight) is int and (tracks or weight > 1))
        if known is not None and known.counts is not None and _is_scalar(weight):
            counts = known.counts
        return values, weight if counts else self._part_of(metric, weight)

    def _part_of(self, metric: Any, weight: Any) -> Any:
        if isinstance(weight, (int, float)):
            return weight * self.share.fraction
        return keras.ops.cast(weight, metric.dtype) * keras.ops.cast(
            self.share.fraction, metric.dtype
        )

    def _of_sum(self, metric: Any, value: Any) -> Any:
        """Return a sum over this part's samples such that the mean over the parts is all's."""
        value = keras.ops.cast(value, metric.dtype)  # it may be a count
        return keras.ops.divide_no_nan(value, keras.ops.cast(self.share.fraction, metric.dtype))

    def of_function(self, metric: Any, value: Any, batch: tuple[Any, ...]) -> tuple[Any, Any]:
        """Return what a function's one number for a batch is here, and what it weighs. metric:
        means those numbers. batch: what the function was given."""
        if metric not in _kinds:
            with losses.tried_alone(self.engine, metric):
                (kind,) = kinds.kinds_of(lambda _, *b: [private.figure_of(metric, *b)], batch)
            _kinds[metric] = kind
            if kind in _SAID:
                trial.say(_SAID[kind].format(metric.name), self.engine)
        if _kinds[metric] == "sum":
            value = self._of_sum(metric, value)
        return value, self.share.fraction

    def own_by_name(self, logs: Any) -> dict[str, Any]:
        """Return those of a step's logs that are one number each, by name."""
        found = logs if isinstance(logs, dict) else {"what it returns": logs}
        return {
            name: _real(leaf)
            for name, leaf in found.items()
            if not tree.is_nested(leaf) and self._is_own(leaf)
        }

    def own(self, logs: Any) -> list[Any]:
        """Return the figures in the logs that no metric keeps, in the order in which `of_all` comes
        to them: on torch Keras flattens dicts by their sorted keys, and maps them as they are."""
        leaves: list[Any] = []
        tree.map_structure(leaves.append, logs)
        return [_real(leaf) for leaf in leaves if self._is_own(leaf)]

    def of_all(self, logs: Any, own: list[Any]) -> Any:
        """Return the logs with those figures as they are over all parts, and metrics' results of
        the states that metrics have now."""
        told = iter(own)
        again: dict[int, Any] = {}

        def of_all(leaf: Any) -> Any:
            found = self._place(leaf)
            if found is not None:
                metric, place = found
                if id(metric) not in again:
                    again[id(metric)] = tree.flatten(metric.result())
                return again[id(metric)][place]
            if not self._is_own(leaf):
                return leaf
            value = next(told)
            return keras.ops.cast(value, leaf.dtype) if keras.ops.is_tensor(leaf) else value

        return tree.map_structure(of_all, logs)

    def _is_own(self, leaf: Any) -> bool:
        number = keras.ops.is_tensor(leaf) or isinstance(leaf, float)
        return number and self._place(leaf) is None

    def _place(self, leaf: Any) -> tuple[Any, int] | None:
        """Return the metric that gave a log, and the place in what it gave."""
        for metric, result in self._results:
            for place, each in enumerate(tree.flatten(result)):
                if each is leaf:
                    return metric, place
        return None


_kinds: WeakKeyDictionary[Any, kinds.Kind] = WeakKeyDictionary()
"""Of metrics by functions that give one number for a batch: what that is."""
_updates: WeakKeyDictionary[Any, dict[str, Updates]] = WeakKeyDictionary()
"""By metric and step."""
_noting: ContextVar[StepFigures | None] = ContextVar("dream.keras_figures", default=None)


def note_update(metric: Any, step: str, found: Updates, engine: Engine) -> None:
    """Note what a step updates a metric by; say so if replicas cannot add that up."""
    known = _updates.setdefault(metric, {})
    known[step] = known.get(step, found) | found
    if known[step].kind == "unknown":
        trial.say(_NEITHER.format(metric.name), engine)


def takes_numbers(model: Any) -> bool:
    """Whether something may update the model's metrics by one number for a batch: a layer's call,
    or a loss."""
    known = _trackers(model)
    return any(
        type(metric).update_state in _SCALARS and id(metric) not in known
        for metric in private.leaf_metrics(model.metrics)
    )


def _trackers(model: Any) -> set[int]:
    """Return the metrics by which Keras follows its losses, by identity."""
    return {id(each) for each in (private.loss_tracker(model), *private.output_losses(model))}


def watch(model: Any) -> None:
    """Have the model's metrics tell of their results, on the instance, for life."""
    own_results = type(model).get_metrics_result is not keras.Model.get_metrics_result
    if private.makes_floats_of_results() and not own_results:
        model.get_metrics_result = MethodType(_results, model)
    trackers = _trackers(model)
    for metric in private.leaf_metrics(model.metrics):
        if "result" in vars(metric):
            continue
        metric.result = MethodType(_result, metric)
        if type(metric).update_state is keras.metrics.MeanMetricWrapper.update_state:
            metric.update_state = MethodType(_update_by_function, metric)
        if type(metric).update_state in _SCALARS:
            own = _track if id(metric) in trackers else _update_state
            metric.update_state = MethodType(own, metric)


def _results(self: Any) -> dict[str, Any]:
    """`get_metrics_result`, of which no float is made: which metric gave it would be lost."""
    found: dict[str, Any] = {}
    for metric in self.metrics:
        result = metric.result()
        found |= result if isinstance(result, dict) else {metric.name: result}
    return found


def _result(self: Any) -> Any:
    figures = _noting.get()
    if figures is None:
        return type(self).result(self)
    found = figures.states.result(self)
    figures.note(self, found)
    return found


def _update_state(
    self: Any, values: Any, sample_weight: Any = None, *, tracks: bool = False
) -> None:
    figures = _noting.get()
    if figures is not None:
        values, sample_weight = figures.of_update(self, values, sample_weight, tracks=tracks)
    _add(self, type(self).update_state, values, sample_weight)


def _update_by_function(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
    """Update the mean of what a function gives, as MeanMetricWrapper does."""
    value, figures = private.figure_of(self, y_true, y_pred), _noting.get()
    mask = private.mask_of(y_pred)
    weight = private.masked_weights(sample_weight, mask, self.dtype, "sum")
    if figures is not None and weight is None and _is_scalar(value):
        value, weight = figures.of_function(self, value, (None, y_true, y_pred))
    _add(self, keras.metrics.Mean.update_state, value, weight)


def _add(metric: Any, update: Any, values: Any, weight: Any) -> None:
    figures = _noting.get()
    if figures is None:
        update(metric, values, sample_weight=weight)
    else:
        figures.states.add(metric, update, values, weight)


_track = partial(_update_state, tracks=True)


def _is_scalar(values: Any) -> bool:
    shape = getattr(values, "shape", None)
    return isinstance(values, (int, float)) or (shape is not None and len(shape) == 0)


def _real(figure: Any) -> Any:
    """Return a figure as a tensor that can be averaged."""
    tensor = keras.ops.convert_to_tensor(figure)
    kind = keras.backend.standardize_dtype(tensor.dtype)
    return tensor if "float" in kind else keras.ops.cast(tensor, "float32")
