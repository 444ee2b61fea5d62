"""What only its user knows of a step: a train_step, states that a call changes, metrics of one's
own. Tried once on a small batch and on its two parts, they tell whether replicas can share them:
gradients and states as means over samples, metrics as sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import keras
import numpy as np
from keras import ops

from dream._errors import Unsupported
from dream.adapters.keras import consistency, kinds, private
from dream.adapters.keras.data.share import BatchShare
from dream.adapters.keras.engine import Array, Engine
from dream.adapters.keras.figures import Updates, note_update, takes_numbers
from dream.adapters.keras.randomness.sizes import DrawnSizes
from dream.adapters.keras.update import batch_norm, coupling, trial
from dream.adapters.keras.update.step_trial import (
    MEANS,
    SIZES,
    SUMS,
    Found,
    add_up,
    are_finite,
    found_by,
    of_rows,
    stretched,
)

_trained: WeakSet[Any] = WeakSet()
_evaluated: WeakSet[Any] = WeakSet()
summed: WeakSet[Any] = WeakSet()
"""Models whose own steps have gradients that are sums over samples."""


def check(model: Any, engine: Engine, batch: Any) -> DrawnSizes:
    """Say once of a model what replicas do not share as one device would have it; return what its
    steps draw. batch: of tensors, or of their shapes and dtypes. To be called where a step
    draws."""
    return _once(_trained, _check, model, engine, batch)


def check_test(model: Any, engine: Engine, batch: Any) -> DrawnSizes:
    """Say of a model's evaluation, once, if replicas cannot share the figures that it makes; return
    what its steps draw."""
    return _once(_evaluated, _check_test, model, engine, batch)


def _once(
    seen: WeakSet[Any], look: Callable[[Any, Engine, Any], bool], model: Any, engine: Engine,
    batch: Any,
) -> DrawnSizes:  # fmt: skip
    if model not in seen:
        seen.add(model)
        told = look(model, engine, batch)
        _check_sizes(model, engine, training=look is _check)
        if look is _check and not told and trial.drawn_by_trials(model).drew():
            _check_draws(model, engine, batch)
    return trial.drawn_by_trials(model)


def weight(model: Any, engine: Engine, share: BatchShare) -> Any:
    """Return what a share's gradients count for in a step of the user's own: that of an equal part
    of a mean is 1."""
    if model not in summed:
        return share.fraction * engine.parts
    return engine.parts * ops.cast(ops.convert_to_tensor(share.fraction) > 0, "float32")


def _check(model: Any, engine: Engine, batch: Any) -> bool:
    """Return whether samples are said to be coupled."""
    custom = type(model).train_step is not keras.Model.train_step
    own_loss = type(model).compute_loss is not keras.Model.compute_loss
    states, metrics = _states_of(model), _metrics_of(model)
    coupled = coupling.check(model, engine, batch[0] if isinstance(batch, tuple) else batch)
    if not (custom or own_loss or states or metrics or _makes_figures(model)):
        return coupled
    found = found_by(model, engine, batch, states, [v for m in metrics for v in m.variables])
    _check_rates(model, found or [])
    _note_numbers(engine, found, "train_step")
    add = _gradients_add_up(model, engine, batch, found, custom=custom)
    if add and found and (found[0].figures or found[0].numbers):
        _check_figures(model, engine, batch)
    _check_states(engine, found or [], states, metrics)
    return coupled or not add


def _gradients_add_up(
    model: Any, engine: Engine, batch: Any, found: Sequence[Found] | None, *, custom: bool
) -> bool:
    """Whether the gradients of a step of one's own (custom) are what those of parts add up to; say
    so if not, and note those that are sums."""
    known = bool(found and found[0].gradients)
    tells = custom and (known or not engine.pooled)  # devices of one process cannot step apart
    gradients = [each.gradients for each in found or []]
    parts = next((p for p in (MEANS, SUMS) if known and add_up(gradients, p)), None)
    if tells and parts is SUMS:
        summed.add(model)
    if not tells or (parts and _adds_up_at_extremes(model, engine, batch, parts)):
        return True
    tried = (
        "no mean of its parts', nor a sum"
        if known
        else "not known, as made-up batches bring it none"
    )
    trial.say(
        f"{type(model).__name__}.train_step is shared by replicas, whose gradients count as those "
        f"of a mean over samples. Received: gradients of a batch that are {tried}, as where a loss "
        "is in part a sum, is divided by a mask, couples samples, or hangs on a metric, or where "
        "gradients are clipped or left out by their size. Compute such a loss by self.compute_loss "
        "with Keras's reduction, mask or sample_weight, which are known, or divide by the batch's "
        "samples; have the optimizer clip (clipnorm=)", engine,
    )  # fmt: skip
    return False


def _check_states(
    engine: Engine, found: Sequence[Found], states: Sequence[Any], metrics: Sequence[Any]
) -> None:
    """Say of states that are no means over samples, and of metrics that are no sums."""
    for place, state in enumerate(states if found else []):
        if not add_up([[each.states[place]] for each in found]):
            trial.say(
                f"{state.path} is a state that the model's call changes by its batch, as no mean "
                "over samples does: all replicas hold the mean of what their shares make of it. "
                "Received: a state that a part of a batch changes otherwise, such as a largest "
                "value or a count. Let it follow a mean over the batch", engine,
            )  # fmt: skip
    gains = [each.gains for each in found]
    if gains and not add_up(gains, SUMS):
        names = ", ".join(metric.name for metric in metrics)
        trial.say(
            f"The metric {names} is more than a sum over samples, and replicas add up what they "
            "have of it. Received: a state that a batch changes otherwise than its parts do "
            "together, such as a largest value. Keep sums and counts in it", engine,
        )  # fmt: skip


def _check_test(model: Any, engine: Engine, batch: Any) -> bool:
    inputs = batch[0] if isinstance(batch, tuple) else batch
    coupled = coupling.answers(model, engine, inputs) == coupling.COUPLES
    if coupled:
        coupling.say_coupled(model, engine)
    if type(model).test_step is not keras.Model.test_step or _makes_figures(model):
        _note_numbers(engine, found_by(model, engine, batch, (), (), "test_step"), "test_step")
        _check_figures(model, engine, batch, "test_step")
    return coupled


def _makes_figures(model: Any) -> bool:
    """Whether a model's logs are more than the results of metrics that Keras updates."""
    names = "compute_metrics", "get_metrics_result"
    own = any(getattr(type(model), n) is not getattr(keras.Model, n) for n in names)
    return own or takes_numbers(model)


def _check_figures(model: Any, engine: Engine, batch: Any, step: str = "train_step") -> None:
    """Say of figures that are no mean over samples, or hang on what metrics have seen before. Tried
    on uneven parts: of even ones a root of a mean is nearly the mean of their roots."""
    found = next(
        (
            f
            for f in (found_by(model, engine, batch, (), (), step, size) for size in SIZES)
            if f is None or are_finite(n for each in f for _, n, _ in each.numbers)
        ),
        None,
    )
    if found is None:
        return
    _note_numbers(engine, found, step)
    whole, *parts, later = (each.figures for each in found)
    names = [
        name
        for name, value in whole.items()
        if value.ndim == 0
        and all(np.isfinite(each[name]) for each in (whole, *parts, later))
        and not (
            trial.is_close(value, later[name])
            and add_up([[value], *([each[name]] for each in parts)])
        )
    ]
    if names:
        trial.say(
            f"The steps of {type(model).__name__} make figures of their own, and replicas average "
            f"those of their shares. Received: {', '.join(names)}, which is no mean over a batch's "
            "samples, as a root, a largest value, a norm or a ratio of metrics is none. Have a "
            "keras.metrics.Metric give it, whose sums are those of all", engine,
        )  # fmt: skip


def _note_numbers(engine: Engine, found: Sequence[Found] | None, step: str) -> None:
    """Note what the single numbers are that a step updates metrics by: to be called for even parts
    and for uneven ones, as a root is nearly the mean of even parts' roots, and a largest value
    nearly the sum of uneven ones'."""
    runs = [each.numbers for each in (found or [])[:3]]
    if len({len(numbers) for numbers in runs}) != 1:
        return
    for same in zip(*runs, strict=True):
        values = [value for _, value, _ in same]
        weights = [weight for *_, weight in same]
        note_update(same[0][0], step, _updates_of(values, weights), engine)


def _updates_of(values: Sequence[Array], weights: Sequence[Array | None]) -> Updates:
    """Return what numbers are, of a batch and of its parts, and what they weigh."""
    given = [w for w in weights if w is not None and w.ndim == 0]
    if len(given) < len(weights):
        return Updates(_kind_of(values))
    counts = {"mean": False, "sum": True}.get(_kind_of(given))
    if counts is None:
        return Updates("unknown")
    weighed = [value * weight for value, weight in zip(values, given, strict=True)]
    adds_up = add_up([[each] for each in weighed], SUMS if counts else MEANS)
    return Updates("mean" if adds_up else _kind_of(values), counts)


def _kind_of(values: Sequence[Array]) -> kinds.Kind:
    each = [[value] for value in values]
    if add_up(each, MEANS):
        return "mean"
    return "sum" if add_up(each, SUMS) else "unknown"


def _check_rates(model: Any, found: Sequence[Found]) -> None:
    """Refuse a step that sets its learning rate by its batch: each replica would by its share."""
    by_batch = [np.asarray(each.rates) for each in found]
    if any(
        not np.allclose(rates, by_batch[0], rtol=1e-6, atol=0, equal_nan=True) for rates in by_batch
    ):
        raise Unsupported(
            "A step sets its learning rate by its batch, and replicas would by their shares of it. "
            f"Received: {type(model).__name__}.train_step, a learning rate of "
            f"{type(model.optimizer).__name__} that is another for a part of a batch. Set it by a "
            "schedule, or between steps, by logs, which are global."
        )


def _adds_up_at_extremes(
    model: Any, engine: Engine, batch: Any, parts: tuple[float, float]
) -> bool:
    """Whether gradients of a batch that is far larger in its second part, where metrics have other
    values too, are what its parts' add up to: not where they are clipped, or left out, by their
    size. True where that cannot be found out."""
    even = trial.widened(kinds.made_up(batch, classes=2))

    def take(made_up: Any) -> list[list[Array]]:
        tries = (slice(None), 0.0), *((rows, 1.0) for rows in trial.PARTS)
        return [of_rows(model, engine, made_up, r, (), (), m).gradients for r, m in tries]

    for size in SIZES:
        made_up = stretched(even, size)
        try:
            found = take(made_up)
            if not are_finite(array for arrays in found for array in arrays):
                continue
            if add_up(found, parts, _AT_EXTREMES):
                return True
            near = take(trial.nudged(made_up))
        except Exception:
            return True
        if trial.are_steady(found, near, _AT_EXTREMES):
            return False
    return True


def _check_sizes(model: Any, engine: Engine, *, training: bool) -> None:
    """Say of a step that calls models on rows of its batch together with others."""
    if trial.drawn_by_trials(model).settle(training=training):
        trial.say(
            f"A step of {type(model).__name__} draws for rows of its batch, or normalises them, "
            "together with others of a number that the script has written down: on several "
            "replicas those are not one device's. Received: rows that grow with the batch, and "
            "not by its samples. Call layers on each by themselves, or draw as many rows as the "
            "batch has", engine,
        )  # fmt: skip


def _check_draws(model: Any, engine: Engine, batch: Any) -> None:
    """Say of a step by whose draws samples hang on each other: what tells nothing where all rows
    have the same numbers."""
    if any(_couples_by_draw(model, engine, batch, draw) for draw in range(trial.DRAWS)):
        trial.say(
            f"A step of {type(model).__name__} draws random numbers by which samples hang on "
            "others of their batch, which replicas share, as where an order is drawn (argsort of "
            "keras.random.uniform, for mixup). Received: gradients of a batch that are no mean of "
            "its parts', nor a sum, once each sample has numbers of its own. Mix samples where "
            "the data is made", engine,
        )  # fmt: skip


def _couples_by_draw(model: Any, engine: Engine, batch: Any, draw: int) -> bool:
    even = trial.widened(kinds.made_up(batch, classes=2))
    rows = slice(None), *trial.PARTS

    def take(made_up: Any, *runs: slice) -> list[list[Array]]:
        return [of_rows(model, engine, made_up, r, (), (), draw=draw).gradients for r in runs]

    try:
        *found, again = take(even, *rows, slice(None))
        if not (_is_repeated(found[0], again) and are_finite(x for each in found for x in each)):
            return False
        if any(add_up(found, parts) for parts in (MEANS, SUMS)):
            return False
        return trial.are_steady(found, take(trial.nudged(even), *rows))
    except Exception:
        return False  # it takes nothing that is made up


def _is_repeated(found: Sequence[Array], again: Sequence[Array]) -> bool:
    return len(found) == len(again) and trial.are_close(found, again)


def _states_of(model: Any) -> list[Any]:
    """Return the states that replicas average, but for BatchNorm's, which are known."""
    known = {id(v) for layer in batch_norm.layers_of(model) for v in layer.variables}
    return [v for v in consistency.statistics_of(model) if id(v) not in known]


def _metrics_of(model: Any) -> list[Any]:
    """Return the metrics that are not Keras's."""
    found = private.leaf_metrics(model.metrics)
    return [each for each in found if not type(each).__module__.startswith("keras.")]


_AT_EXTREMES = 50.0
"""How much farther apart gradients may be at numbers of some thousands: the sum before a tanh may
come to be near 0, and what is left of it hangs on the order in which a processor adds (2e-3)."""
