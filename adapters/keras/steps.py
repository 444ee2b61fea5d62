"""One step of fit or evaluate on a part's share: what each part computes becomes global.

One sum over the parts carries gradients, metric states, running statistics and logs together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.keras import metrics, optimizer, private, step
from dream.adapters.keras.engine import BATCH, SHARE, Engine
from dream.adapters.keras.update import accumulating, batch_norm

Logs = dict[str, Any]


def train(model: Any, engine: Engine, element: Any) -> Any:
    """A training step. element: a dealt one, or a batch that counts as an equal share."""
    batch, share = opened(element, engine)
    fraction = share[0] / share[1]
    custom = type(model).train_step is not keras.Model.train_step
    if engine.knobs.accumulates:
        return _accumulate(model, engine, batch, share)
    summing = _Summing(model, engine, share, statistics=True, own_loss=custom)
    worth = fraction * engine.parts if custom else 1.0
    with engine.stepping(), batch_norm.over_step(model, engine, share, worth):
        if custom:
            with step.step_scope(fraction * engine.parts):
                logs = type(model).train_step(model, batch)
            return summing.finish(batch, logs, [])
        with step.holding_scope(fraction) as held:
            logs = type(model).train_step(model, batch)
        if not held and model.trainable_weights:
            raise ConfigurationError(
                "The step's optimizer is not distributed, so its gradients were this replica's "
                f"own. Received: {type(model.optimizer).__name__} set after compile. Call "
                "model.compile with it."
            )
        return summing.finish(batch, logs, held)


def _accumulate(model: Any, engine: Engine, batch: Any, share: Any) -> Any:
    """The same in micro-batches, whose sum travels once."""
    summing = _Summing(model, engine, share, statistics=True, own_loss=False)
    with engine.stepping():
        update = accumulating.held(model, engine, batch, share[0] / share[1])
        logs = dict.fromkeys(model.get_metrics_result())
        return summing.finish(batch, logs, [update])


def test(model: Any, engine: Engine, element: Any) -> Any:
    """A step of evaluate."""
    batch, share = opened(element, engine)
    custom = type(model).test_step is not keras.Model.test_step
    summing = _Summing(model, engine, share, statistics=False, own_loss=custom)
    with engine.stepping():
        return summing.finish(batch, type(model).test_step(model, batch), [])


def compute_loss(model: Any, engine: Engine, *args: Any, **kwargs: Any) -> Any:
    """The model's own loss, of predictions that count every sample alike."""
    predicted = args[2] if len(args) > 2 else kwargs.get("y_pred")
    if any(private.mask_of(t) is not None for t in private.tree.flatten(predicted)):
        raise Unsupported(
            "The predictions carry a mask, so the loss is the mean over what is unmasked, of which "
            f"replicas hold unequal numbers. Received: a masked output, replicas={engine.parts}. "
            "Use strategy.train_step with weight=, or drop the mask before the output."
        )
    return type(model).compute_loss(model, *args, **kwargs)


def opened(element: Any, engine: Engine) -> tuple[Any, Any]:
    """(batch, share) of an element."""
    if isinstance(element, dict) and SHARE in element:
        return element[BATCH], element[SHARE]
    return element, (1.0, float(engine.parts), 0.0)


class _Summing:
    """What a step adds up over the parts, from its start to its end.

    own_loss: the step is the user's, whose "loss" may be a figure that no metric keeps.
    """

    def __init__(
        self, model: Any, engine: Engine, share: Any, *, statistics: bool, own_loss: bool
    ) -> None:
        self._model = model
        self._engine = engine
        self._share = share
        self._metrics = metrics.states(model)
        self._statistics = statistics_of(model) if statistics else []
        self._tracker = private.loss_tracker(model) if own_loss else None
        self._before = engine.copies(self._metrics)
        if not engine.pooled:
            for variable in self._metrics:
                variable.assign(keras.ops.zeros_like(variable))

    def finish(self, batch: Any, logs: Any, held: list[step.Update]) -> Any:
        """Add up, apply the held updates, and return the global logs."""
        engine, fraction = self._engine, self._share[0] / self._share[1]
        own = self._own_states(batch)
        extra = self._extra(logs)
        gradients = [g for update in held for g in update.gradients if g is not None]
        groups = [
            [] if engine.exchange else gradients, own,
            engine.weigh([v.value for v in self._statistics], fraction),
            engine.weigh(list(extra.values()), fraction),
            engine.one_hot(self._share),
        ]  # fmt: skip
        summed = _unflatten(engine.total([t for group in groups for t in group]), groups)
        for digests in summed[4]:
            engine.check_digests(self._share, digests)
        for variable, value in zip(self._statistics, summed[2], strict=True):
            variable.assign(value)
        reduced = iter(summed[0])
        for update in held:
            if engine.exchange:
                whole = optimizer.exchanged(engine, update, engine.parts)
            else:
                whole = [None if g is None else next(reduced) for g in update.gradients]
            optimizer.apply_global(update.optimizer, engine, whole, update.variables)
        return self._global_logs(logs, summed[1], dict(zip(extra, summed[3], strict=True)))

    def _own_states(self, batch: Any) -> list[Any]:
        """This part's contribution to the global metric states."""
        share, engine = self._share, self._engine
        counted_once = _counted_once(self._model, batch)
        states = []
        for variable, before in zip(self._metrics, self._before, strict=True):
            state = variable.value
            if id(variable) in counted_once:
                # torch knows every length and counts samples: so do all where one is torch
                weight = share[0] if engine.mixed else share[0] / share[1]
                start = before if engine.pooled else 0.0
                state = start + (state - start) * weight
            elif engine.pooled:
                state = keras.ops.where(share[0] > 0, state, before)
            else:
                (state,) = engine.keep(share, [state])
            states.append(state)
        if engine.pooled:
            for variable, state in zip(self._metrics, states, strict=True):
                variable.assign(state)
        return states

    def _extra(self, logs: Any) -> Logs:
        """Logs that no metric keeps: a custom step's own figures."""
        if not isinstance(logs, dict):
            return {}
        known = set(self._model.get_metrics_result())
        if self._tracker is not None:
            known.discard(self._tracker.name)
        return {key: keras.ops.cast(v, "float32") for key, v in logs.items() if key not in known}

    def _global_logs(self, logs: Any, summed: list[Any], extra: Logs) -> Any:
        if self._engine.pooled:
            mapping = list(zip(self._metrics, summed, strict=True))
            with keras.StatelessScope(state_mapping=mapping):
                results = self._model.get_metrics_result()
        else:
            for variable, before, gain in zip(self._metrics, self._before, summed, strict=True):
                variable.assign(before + gain)
            results = self._model.get_metrics_result()
        if not isinstance(logs, dict):
            return logs
        if self._tracker is not None and self._tracker.name in extra:
            extra[self._tracker.name] = self._kept_loss(results, extra[self._tracker.name], summed)
        return {key: extra[key] if key in extra else results[key] for key in logs}

    def _kept_loss(self, results: Logs, said: Any, summed: list[Any]) -> Any:
        """The tracker's loss where the step updated it, else the one that the step said."""
        tracker = self._tracker
        assert tracker is not None
        place = next(i for i, v in enumerate(self._metrics) if v is tracker.count)
        return keras.ops.where(summed[place] > 0, results[tracker.name], said)


def statistics_of(model: Any) -> list[Any]:
    """Floating point states that training changes beside gradients: BatchNorm's and the like.
    Frozen layers keep theirs."""
    found = {
        id(v): v
        for layer in private.layers_of(model)
        if layer.trainable
        for v in private.own_states(layer)
        if "float" in str(v.dtype)
    }
    return list(found.values())


def _counted_once(model: Any, batch: Any) -> set[int]:
    """The ids of the states of an output's own loss, where Keras counts a batch of unknown length
    as one: each part's counts for its share of it."""
    if private.tree.flatten(batch)[0].shape[0] is not None:
        return set()
    return {id(v) for metric in private.output_losses(model) for v in metric.variables}


def _unflatten(flat: Sequence[Any], groups: list[list[Any]]) -> list[list[Any]]:
    parts = iter(flat)
    return [[next(parts) for _ in group] for group in groups]
