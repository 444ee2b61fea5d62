"""The explicit training step of a Keras optimizer on torch."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import keras
import torch
from keras import tree

from dream._adapter import Loss, Weight
from dream.adapters.keras import consistency, optimizer, recompute
from dream.adapters.keras.data.share import BatchShare
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.forward import check_loss, forward, score
from dream.adapters.keras.update import batch_norm
from dream.adapters.keras.update.drift import guard_of
from dream.adapters.keras.update.exchange import on_present
from dream.adapters.keras.update.gradient_format import (
    CanonicalFormat,
    GradientFormat,
    NativeFormat,
)
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.loose_parameters import leave_gradients_alone
from dream.adapters.pytorch.train_step import check_scalar
from dream.adapters.pytorch.update.weigh import count_of
from dream.data.partition import split
from dream.mixed.resync import Resync

Batch = tuple[Any, ...]


@final
class KerasStep:
    """Each rank adds up what it has times what it counts for, and the counts themselves; the
    quotient is the mean over the global batch, however uneven the shares are.

    weight: `weight(*batch)` counts the batch's things; None counts samples. shares: those that
    loaders hand out.
    """

    def __init__(
        self,
        engine: Engine,
        model: Any,
        loss: Loss,
        keras_optimizer: Any,
        weight: Weight | None,
        shares: Shares | None = None,
    ) -> None:
        check_loss(loss)
        optimizer.adopt_by_hand(keras_optimizer, engine.update_options)
        self._engine = engine
        self._model = model
        self._loss = loss
        self._optimizer = keras_optimizer
        self._weight = weight
        self._shares = shares
        self._guard = guard_of(engine)
        self._fresh = True
        self._synchronised = False
        self._resync: Resync | None = None
        self._format: GradientFormat = NativeFormat()

    def __call__(self, *batch: Any) -> torch.Tensor:
        """Train, and return the global mean loss, penalties of the model's layers included."""
        if self._fresh:
            self._start(batch)
            self._fresh = False
        if self._resync is not None:
            self._resync.before_step()
        if self._guard is not None:
            self._guard.before_step(self._model, [self._optimizer])
        variables = self._model.trainable_variables
        count = len(batch[-1]) if self._weight is None else count_of(self._weight(*batch))
        with self._drawing(batch):
            value: torch.Tensor
            if self._engine.update_options.accumulates:
                value, gradients = self._engine.fitted(
                    self._model, lambda: self._in_micros(batch, variables), len(batch[-1])
                )
            else:
                value, gradients = self._differentiate(batch, variables, count, whole=True)
        if self._engine.parts > 1:
            value, gradients = self._reduce(value, gradients, count)
        optimizer.apply_global(self._optimizer, self._engine, gradients, variables)
        return value

    def _drawing(self, batch: Batch) -> AbstractContextManager[Any]:
        """Surround the forward pass: draws are the global batch's, where a loader has dealt it."""
        share = None if self._shares is None else self._shares.of(tree.flatten(batch))
        if share is None or self._engine.parts == 1:
            return nullcontext()
        return self._engine.drawing(BatchShare.of(share))

    def _draw(self, inputs: Batch) -> None:
        """Draw what the other ranks draw in a step that this one has no sample for."""
        shown = tree.map_structure(lambda t: t.new_zeros((1, *t.shape[1:])), inputs)
        states = consistency.statistics_of(self._model)
        before = self._engine.copies(states)
        with torch.no_grad():
            forward(self._model, shown, training=True)
        for state, value in zip(states, before, strict=True):
            state.assign(value)

    def _in_micros(self, batch: Batch, variables: list[Any]) -> tuple[torch.Tensor, list[Any]]:
        """Return the means over micro-batches that count for what is in them."""
        rows = len(batch[-1])
        micros = self._engine.micros(rows)
        value, total = torch.zeros(()), 0.0
        sums: list[torch.Tensor | None] = [None] * len(variables)
        for micro in range(micros):
            cut = slice(micro * rows // micros, (micro + 1) * rows // micros)
            part = tree.map_structure(lambda t, at=cut: t[at], batch)
            count = len(part[-1]) if self._weight is None else count_of(self._weight(*part))
            if count:
                found, gradients = self._differentiate(part, variables, count)
                value, total = value + found * count, total + count
                sums = [_added(s, g, count) for s, g in zip(sums, gradients, strict=True)]
        if not total:
            return value, [torch.zeros_like(v.value) for v in variables]
        return value / total, [None if s is None else s / total for s in sums]

    def _start(self, batch: Batch) -> None:
        inputs, _ = split(batch)
        self._engine.take_over(self._model)
        with torch.no_grad():
            if not self._model.built:
                self._model(*inputs)
        recompute.adopt(self._model, self._engine)
        if not self._optimizer.built:
            self._optimizer.build(self._model.trainable_variables)
        if self._engine.parts > 1:
            self._agree(inputs)
            batch_norm.synchronise(self._model, self._engine)
            consistency.report_local_statistics(self._model, self._engine)
        consistency.report_micro_draws(self._model, self._engine)
        self._synchronised = batch_norm.synchronises(self._model, self._engine)

    def _agree(self, inputs: Batch) -> None:
        if self._engine.mixed:
            self._format = travels = CanonicalFormat(self._model, inputs)
            travels.agree([self._optimizer], self._engine)
            self._resync = travels.resync(self._engine)
        else:
            consistency.agree_on(self._model, [self._optimizer], self._engine)

    def _differentiate(
        self, batch: Batch, variables: list[Any], count: float, *, whole: bool = False
    ) -> tuple[torch.Tensor, list[Any]]:
        """Return (loss, gradients); nothing at all where there is nothing to count. Where ranks
        compute statistics together all of them do, and gradients are weighed already. whole:
        whether this is all of the rank's share."""
        synchronised = whole and self._synchronised
        if count == 0.0 and self._engine.parts > 1 and not synchronised:
            self._draw(split(batch)[0])
            return torch.zeros(()), [torch.zeros_like(v.value) for v in variables]
        inputs, target = split(batch)
        self._model.zero_grad()
        scope = batch_norm.global_statistics(self._model, self._engine)
        with leave_gradients_alone(), scope:  # this step adds them up itself
            prediction = forward(self._model, inputs, training=True)
            value = check_scalar(keras.ops.mean(score(self._loss, prediction, target)))
            for penalty in self._model.losses:
                value = value + penalty
            scaled = self._optimizer.scale_loss(value)
            (scaled * count if synchronised else scaled).backward()
        return value.detach(), [v.value.grad for v in variables]

    def _reduce(
        self, value: torch.Tensor, gradients: list[Any], count: float
    ) -> tuple[torch.Tensor, list[Any]]:
        statistics = consistency.statistics_of(self._model)
        exchange = self._engine.exchange
        summed = gradients if exchange is None else [None] * len(gradients)
        packed = self._format.pack(summed, statistics)
        done = sum(g is not None for g in summed) if self._synchronised else 0
        value, *rest = self._engine.weigh([value, *packed[done:]], count)
        counts = torch.tensor(float(count))
        *sums, total = self._engine.total([value, *packed[:done], *rest, counts])
        means = [s / total if total else s for s in sums]
        whole, averages = self._format.unpack(means[1:], summed, statistics)
        for variable, mean in zip(statistics, averages, strict=True):
            variable.assign(mean)
        if exchange is not None:
            counted = 1.0 if self._synchronised else count
            worth = counted * self._engine.parts / float(total) if total else 0.0
            weighed = on_present(gradients, lambda given: self._engine.weigh(given, worth))
            whole = exchange.present(self._model.trainable_variables, weighed)
        return means[0], whole


def _added(total: torch.Tensor | None, gradient: Any, count: float) -> torch.Tensor | None:
    if gradient is None:
        return total
    weighed: torch.Tensor = gradient * count
    return weighed if total is None else total + weighed
