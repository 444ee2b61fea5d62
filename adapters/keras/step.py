"""One step of fit or evaluate on a part's share: what each part computes becomes global.

One sum over the parts carries gradients, metric states, running statistics and logs together.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import keras
from keras import tree

from dream._errors import ConfigurationError
from dream.adapters.keras import checks, figures, losses, optimizer, private
from dream.adapters.keras.consistency import metric_states, statistics_of
from dream.adapters.keras.data.share import BATCH, EVEN, MORE, PARTS, SHARE, WHOLE, BatchShare
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.randomness import sizes
from dream.adapters.keras.update import batch_norm, in_python, own_step
from dream.adapters.keras.update.step_states import StepStates


def train_step(model: Any, engine: Engine, element: Any) -> Any:
    """Train. element: a dealt one, alone or as x, or a batch that counts as an equal share."""
    batch, share = _opened(element, engine)
    engine.take_over(model)
    if engine.update_options.accumulates:
        return _train_in_micros(model, engine, _begun(batch, share, engine), share)
    custom = type(model).train_step is not keras.Model.train_step
    sums = _GlobalSums(model, engine, batch, share, statistics=True)
    dealt = share if batch is not element else None
    with engine.stepping(), engine.drawing(share), losses.weighed(engine, dealt):
        drawn = sizes.known(own_step.check(model, engine, batch), ordered=True)
        worth = own_step.weight(model, engine, share) if custom else 1.0
        noted = in_python.watched(model, engine)
        scope = batch_norm.global_statistics(model, engine, present=share.count, worth=worth)
        batch = _begun(batch, share, engine)
        if custom:
            with drawn, scope, optimizer.step_scope(worth), sums.noting(), noted:
                logs = _own_step(model, "train_step", batch)
            return sums.finish(batch, logs, [])
        with drawn, scope, optimizer.holding_scope(share.fraction) as held, sums.noting(), noted:
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
    sums = _GlobalSums(model, engine, batch, share, statistics=True)
    with engine.stepping(), engine.drawing(share), in_python.watched(model, engine):
        update = engine.fitted(
            model, lambda: _accumulated(model, engine, batch, share.fraction), engine.rows(batch)
        )
        with sums.noting():
            logs = model.get_metrics_result()
        return sums.finish(batch, logs, [update])


def test_step(model: Any, engine: Engine, element: Any) -> Any:
    """Evaluate a batch."""
    batch, share = _opened(element, engine)
    sums = _GlobalSums(model, engine, batch, share, statistics=False)
    dealt = share if batch is not element else None
    with engine.stepping(), engine.drawing(share), losses.weighed(engine, dealt):
        drawn = sizes.known(own_step.check_test(model, engine, batch))
        with drawn, sums.noting():
            logs = _own_step(model, "test_step", batch)
        return sums.finish(batch, logs, [])


def _own_step(model: Any, name: str, batch: Any) -> Any:
    """Call the class's step. Keras takes a StopIteration out of it for the end of the data, and
    the epoch for trained."""
    try:
        return getattr(type(model), name)(model, batch)
    except StopIteration as error:
        raise RuntimeError(
            f"A step ended as data does. Received: StopIteration in {type(model).__name__}.{name}. "
            "Give next() a default there."
        ) from error


def _begun(batch: Any, share: BatchShare, engine: Engine) -> Any:
    """Return a batch whose step is timed from here on, where that is asked for."""
    return batch if engine.pace is None else engine.pace.clock.begun(share.count, batch)


def _opened(element: Any, engine: Engine) -> tuple[Any, BatchShare]:
    batch, share = _told_apart(element, engine)
    return batch, share.shown(engine.rows(batch))


def _told_apart(element: Any, engine: Engine) -> tuple[Any, BatchShare]:
    if engine.pace is not None:
        engine.pace.clock.forget()
    if isinstance(element, tuple) and isinstance(element[0], dict) and SHARE in element[0]:
        given = element[0]  # to train_on_batch
        element = {SHARE: given[SHARE], BATCH: engine.of_any_length(given[BATCH])}
    if isinstance(element, dict) and PARTS in element:
        element = engine.mine(element[PARTS])
    if isinstance(element, dict) and MORE in element:
        return element[BATCH], engine.met(element[SHARE], element[MORE])
    if isinstance(element, dict) and WHOLE in element:
        return engine.own_of(element)
    if isinstance(element, dict) and EVEN in element:
        batch = element[EVEN]
        return batch, BatchShare.even(engine.rows(batch), engine.parts, element.get(SHARE))
    if isinstance(element, dict) and SHARE in element:
        share = element[SHARE]
        if not isinstance(share, BatchShare):
            # TensorFlow's iterator over GPUs knows no sizes; the last number is of runs alone
            many = share.shape[0] or (3 if engine.division.weights is None else 4)
            share = BatchShare(*(share[place] for place in range(many)))
        return element[BATCH], share
    return element, BatchShare(1.0, float(engine.parts))


@final
class _GlobalSums:
    """Sums over the parts of all that a step computes, from its start to its end."""

    def __init__(
        self, model: Any, engine: Engine, batch: Any, share: BatchShare, *, statistics: bool
    ) -> None:
        self._model = model
        self._engine = engine
        self._share = share
        self._metrics = metric_states(model)
        self._statistics = statistics_of(model) if statistics else []
        self._in_micros = statistics and engine.update_options.accumulates
        self._before = engine.copies(self._metrics)
        in_graphs = engine.framework == "tensorflow"  # on torch the variables are quicker
        if in_graphs:
            checks.refuse_unknown_sizes(model)
        beside = in_graphs and not engine.pooled and not self._in_micros
        self._states = StepStates.of(model) if beside else StepStates(())
        # One process's devices go on adding up, and are summed whenever Keras asks.
        self._goes_on = engine.pooled and not engine.several_processes
        step = "train_step" if statistics else "test_step"
        self._figures = figures.StepFigures(engine, share, step, self._states)
        figures.watch(model)
        if not self._goes_on:
            with engine.after(batch):
                for variable in self._metrics:
                    if variable not in self._states:
                        variable.assign(keras.ops.zeros_like(variable))

    def noting(self) -> AbstractContextManager[None]:
        """Surround the part of a step that updates metrics and asks for their results."""
        return self._figures.noting()

    def finish(self, batch: Any, logs: Any, held: list[optimizer.Update]) -> Any:
        """Add up, apply the held updates, and return the global logs."""
        engine, fraction = self._engine, self._share.fraction
        extra = self._figures.own(logs)
        gradients = [g for update in held for g in update.gradients if g is not None]
        groups = [
            [] if engine.exchange else gradients, self._own_states(batch),
            engine.weigh([v.value for v in self._statistics], fraction),
            engine.weigh(extra, fraction),
            engine.one_hot(self._share),
        ]  # fmt: skip
        total = iter(engine.total([t for group in groups for t in group]))
        gradients, states, averages, told, digests = [
            [next(total) for _ in group] for group in groups
        ]
        wholes = self._wholes(held, gradients)
        for each in digests:
            kept = [g for whole in wholes for g in whole if g is not None]
            checked = iter(engine.same_batch(self._share, each, [*averages, *kept]))
            averages = [next(checked) for _ in averages]
            wholes = [[None if g is None else next(checked) for g in whole] for whole in wholes]
        for variable, value in zip(self._statistics, averages, strict=True):
            variable.assign(value)
        for update, whole in zip(held, wholes, strict=True):
            optimizer.apply_global(update.optimizer, engine, whole, update.variables)
        return self._global_logs(logs, states, told)

    def _wholes(self, held: list[optimizer.Update], gradients: list[Any]) -> list[list[Any]]:
        """Return what each update steps on."""
        engine, reduced = self._engine, iter(gradients)
        if engine.exchange:
            return [optimizer.exchanged(engine, update, engine.parts) for update in held]
        return [[None if g is None else next(reduced) for g in update.gradients] for update in held]

    def _own_states(self, batch: Any) -> list[Any]:
        """Return this part's contribution to the global metric states."""
        share, engine = self._share, self._engine
        # Keras counts a batch of unknown length as one: each part's counts for its share of it.
        once = [] if _length(batch) is not None else _output_loss_states(self._model)
        counted_once = {id(v) for v in once}
        states: list[Any] = []
        kept: list[int] = []
        for variable, before in zip(self._metrics, self._before, strict=True):
            state = self._states.of_variable(variable)
            if id(variable) in counted_once:
                # torch knows every length and counts samples: so do all where one is torch
                weight = share.total if engine.mixed else 1.0
                if self._in_micros:  # else the update was weighed by the share as it came
                    weight = weight * share.fraction
                start = before if self._goes_on else 0.0
                state = start + (state - start) * keras.ops.cast(weight, state.dtype)
            elif self._goes_on:
                state = keras.ops.where(share.count > 0, state, before)
            else:
                kept.append(len(states))
            states.append(state)
        for place, state in zip(kept, engine.keep(share, [states[i] for i in kept]), strict=True):
            states[place] = state
        if self._goes_on:
            for variable, state in zip(self._metrics, states, strict=True):
                variable.assign(state)
        elif engine.pooled and engine.rank == 0:  # what was before is counted once, by rank 0
            states = [before + gain for before, gain in zip(self._before, states, strict=True)]
        return states

    def _global_logs(self, logs: Any, states: list[Any], told: list[Any]) -> Any:
        """Return the step's logs of all parts: metrics' results anew, other figures as they are."""
        # A metric that is not Keras's own may change its variables as it tells its result.
        engine, alone = self._engine, all(v in self._states for v in self._metrics)
        if not engine.pooled:
            states = [before + gain for before, gain in zip(self._before, states, strict=True)]
        mapping = list(zip(self._metrics, states, strict=True))
        for variable, whole in [] if self._goes_on else mapping:
            variable.assign(engine.held_here(whole))
        with keras.StatelessScope(mapping) if engine.pooled or alone else nullcontext():
            return self._figures.of_all(logs, told)


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
        counts = keras.ops.cast(share, "float64") / (_length(part) or 1)
        counts = counts * keras.ops.cast(rows, "float64") if known else counts
        part_of = BatchShare(fraction * share, 1.0)
        weighing = losses.weighed(engine, part_of, whole=False)
        with optimizer.holding_scope(fraction * share) as updates, weighing:
            type(model).train_step(model, part)
        for variable, value in zip(once, before, strict=True):
            gain = (variable.value - value) * keras.ops.cast(counts, variable.dtype)
            variable.assign(value + gain)
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
