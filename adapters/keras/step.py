"""One step of fit or evaluate on a part's share: what each part computes becomes global.

One sum over the parts carries gradients, metric states, running statistics and logs together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import keras
from keras import tree

from dream._errors import ConfigurationError
from dream.adapters.keras import batch_norm, checks, optimizer, private
from dream.adapters.keras.consistency import metric_states, statistics_of
from dream.adapters.keras.engine import BATCH, SHARE, BatchShare, Engine

Logs = dict[str, Any]


def train_step(model: Any, engine: Engine, element: Any) -> Any:
    """Train. element: a dealt one, or a batch that counts as an equal share."""
    batch, share = _opened(element, engine)
    if engine.knobs.accumulates:
        return _train_in_micros(model, engine, batch, share)
    custom = type(model).train_step is not keras.Model.train_step
    weight = share.fraction * engine.parts
    sums = _GlobalSums(model, engine, share, statistics=True, own_loss=custom)
    worth = weight if custom else 1.0
    scope = batch_norm.global_statistics(model, engine, present=share.count, worth=worth)
    with engine.stepping(), scope:
        if custom:
            with optimizer.step_scope(weight):
                logs = type(model).train_step(model, batch)
            return sums.finish(batch, logs, [])
        with optimizer.holding_scope(share.fraction) as held:
            logs = type(model).train_step(model, batch)
        if not held and model.trainable_weights:
            raise ConfigurationError(
                "The step's optimizer is not distributed, so its gradients were this replica's "
                f"own. Received: {type(model.optimizer).__name__} set after compile. Call "
                "model.compile with it."
            )
        return sums.finish(batch, logs, held)


def _train_in_micros(model: Any, engine: Engine, batch: Any, share: BatchShare) -> Any:
    """Train in micro-batches, whose sum travels once."""
    sums = _GlobalSums(model, engine, share, statistics=True, own_loss=False)
    with engine.stepping():
        update = _accumulated(model, engine, batch, share.fraction)
        return sums.finish(batch, dict.fromkeys(model.get_metrics_result()), [update])


def test_step(model: Any, engine: Engine, element: Any) -> Any:
    """Evaluate a batch."""
    batch, share = _opened(element, engine)
    custom = type(model).test_step is not keras.Model.test_step
    sums = _GlobalSums(model, engine, share, statistics=False, own_loss=custom)
    with engine.stepping():
        return sums.finish(batch, type(model).test_step(model, batch), [])


def compute_loss(model: Any, engine: Engine, *args: Any, **kwargs: Any) -> Any:
    """Compute the model's own loss, of predictions that count every sample alike."""
    checks.check_unmasked(args[2] if len(args) > 2 else kwargs.get("y_pred"), engine)
    return type(model).compute_loss(model, *args, **kwargs)


def _opened(element: Any, engine: Engine) -> tuple[Any, BatchShare]:
    if isinstance(element, dict) and SHARE in element:
        share = element[SHARE]
        return element[BATCH], BatchShare(share[0], share[1], share[2])
    return element, BatchShare(1.0, float(engine.parts))


@final
class _GlobalSums:
    """Sums over the parts of all that a step computes, from its start to its end.

    own_loss: the step is the user's, whose "loss" may be a figure that no metric keeps.
    """

    def __init__(
        self, model: Any, engine: Engine, share: BatchShare, *, statistics: bool, own_loss: bool
    ) -> None:
        self._model = model
        self._engine = engine
        self._share = share
        self._metrics = metric_states(model)
        self._statistics = statistics_of(model) if statistics else []
        self._tracker = private.loss_tracker(model) if own_loss else None
        self._before = engine.copies(self._metrics)
        if not engine.pooled:
            for variable in self._metrics:
                variable.assign(keras.ops.zeros_like(variable))

    def finish(self, batch: Any, logs: Any, held: list[optimizer.Update]) -> Any:
        """Add up, apply the held updates, and return the global logs."""
        engine, fraction = self._engine, self._share.fraction
        extra = self._unkept_logs(logs)
        gradients = [g for update in held for g in update.gradients if g is not None]
        groups = [
            [] if engine.exchange else gradients, self._own_states(batch),
            engine.weigh([v.value for v in self._statistics], fraction),
            engine.weigh(list(extra.values()), fraction),
            engine.one_hot(self._share),
        ]  # fmt: skip
        total = iter(engine.total([t for group in groups for t in group]))
        gradients, states, averages, figures, digests = [
            [next(total) for _ in group] for group in groups
        ]
        for each in digests:
            engine.check_digests(self._share, each)
        for variable, value in zip(self._statistics, averages, strict=True):
            variable.assign(value)
        reduced = iter(gradients)
        for update in held:
            if engine.exchange:
                whole = optimizer.exchanged(engine, update, engine.parts)
            else:
                whole = [None if g is None else next(reduced) for g in update.gradients]
            optimizer.apply_global(update.optimizer, engine, whole, update.variables)
        return self._global_logs(logs, states, dict(zip(extra, figures, strict=True)))

    def _own_states(self, batch: Any) -> list[Any]:
        """Return this part's contribution to the global metric states."""
        share, engine = self._share, self._engine
        # Keras counts a batch of unknown length as one: each part's counts for its share of it.
        once = [] if _length(batch) is not None else _output_loss_states(self._model)
        counted_once = {id(v) for v in once}
        states = []
        for variable, before in zip(self._metrics, self._before, strict=True):
            state = variable.value
            if id(variable) in counted_once:
                # torch knows every length and counts samples: so do all where one is torch
                weight = share.count if engine.mixed else share.fraction
                start = before if engine.pooled else 0.0
                state = start + (state - start) * weight
            elif engine.pooled:
                state = keras.ops.where(share.count > 0, state, before)
            else:
                (state,) = engine.keep(share, [state])
            states.append(state)
        if engine.pooled:
            for variable, state in zip(self._metrics, states, strict=True):
                variable.assign(state)
        return states

    def _unkept_logs(self, logs: Any) -> Logs:
        """Return the logs that no metric keeps: a custom step's own figures."""
        if not isinstance(logs, dict):
            return {}
        known = set(self._model.get_metrics_result())
        if self._tracker is not None:
            known.discard(self._tracker.name)
        return {key: keras.ops.cast(v, "float32") for key, v in logs.items() if key not in known}

    def _global_logs(self, logs: Any, states: list[Any], extra: Logs) -> Any:
        if self._engine.pooled:
            mapping = list(zip(self._metrics, states, strict=True))
            with keras.StatelessScope(state_mapping=mapping):
                results = self._model.get_metrics_result()
        else:
            for variable, before, gain in zip(self._metrics, self._before, states, strict=True):
                variable.assign(before + gain)
            results = self._model.get_metrics_result()
        if not isinstance(logs, dict):
            return logs
        tracker = self._tracker
        if tracker is not None and tracker.name in extra:
            # The tracker's loss where the step updated it, else the one that the step returned.
            place = next(i for i, v in enumerate(self._metrics) if v is tracker.count)
            extra[tracker.name] = keras.ops.where(
                states[place] > 0, results[tracker.name], extra[tracker.name]
            )
        return {key: extra[key] if key in extra else results[key] for key in logs}


def _accumulated(model: Any, engine: Engine, batch: Any, fraction: Any) -> optimizer.Update:
    """Return what Keras's own step would have the optimizer apply for the batch, a part's share,
    computed in micro-batches one after the other, of which only the sum is kept.

    fraction: of the global batch.
    """
    micro = MicroBatches(model, engine)
    rows = engine.rows(batch)
    micros = engine.micros(rows)

    def compute(index: Any) -> list[Any]:
        start, stop = index * rows // micros, (index + 1) * rows // micros
        part = tree.map_structure(lambda t: None if t is None else t[start:stop], batch)
        return micro.gradients(
            part, engine.ratio(stop - start, rows), rows, fraction, known=_length(batch) is not None
        )

    return micro.update(engine.fold(micros, compute, [v.value for v in micro.variables]))


@final
class MicroBatches:
    """A model's own step on micro-batches."""

    def __init__(self, model: Any, engine: Engine) -> None:
        checks.check_micro_batches(model)
        self.variables = list(model.trainable_variables)
        self._model = model
        self._engine = engine
        self._missing = [False] * len(self.variables)

    def gradients(
        self, part: Any, share: Any, rows: Any, fraction: Any = 1.0, *, known: bool
    ) -> list[Any]:
        """Return the gradient by each variable, for what the micro-batch counts; metrics are
        updated by it.

        share: of the batch, which has so many `rows`, and is `fraction` of the global one. known:
        whether Keras knows its length.
        """
        model, engine = self._model, self._engine
        # In a graph Keras counts a batch whose length is unknown as one.
        once = [] if engine.framework == "torch" else _output_loss_states(model)
        before = engine.copies(once)
        counts = share * keras.ops.cast(rows, "float32") if known else share
        counts = counts / (_length(part) or 1)
        with optimizer.holding_scope(fraction * share) as updates:
            type(model).train_step(model, part)
        for variable, value in zip(once, before, strict=True):
            variable.assign(value + (variable.value - value) * counts)
        (update,) = updates
        self._missing = [g is None for g in update.gradients]
        return [
            keras.ops.zeros_like(v.value) if g is None else keras.ops.convert_to_tensor(g)
            for v, g in zip(self.variables, update.gradients, strict=True)
        ]

    def update(self, sums: Sequence[Any]) -> optimizer.Update:
        """Return what is to be applied, from the sums of what micro-batches gave."""
        gradients = [None if no else s for no, s in zip(self._missing, sums, strict=True)]
        return optimizer.Update(self._model.optimizer, gradients, self.variables)


def _length(batch: Any) -> int | None:
    """Return a batch's length, as far as Keras knows it."""
    found: int | None = tree.flatten(batch)[0].shape[0]
    return found


def _output_loss_states(model: Any) -> list[Any]:
    return [v for metric in private.output_losses(model) for v in metric.variables]
