"""A step of fit in micro-batches, one after the other: what the optimizer is to apply is their sum,
and only that is kept of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import keras

from dream._errors import Unsupported
from dream.adapters.keras import private, step
from dream.adapters.keras.engine import Engine


def held(model: Any, engine: Engine, batch: Any, fraction: Any) -> step.Update:
    """What Keras's own step would have the optimizer apply for the batch, a part's share.

    fraction: of the global batch.
    """
    micro = Micro(model, engine)
    rows = engine.rows(batch)
    micros = engine.micros(rows)

    def compute(index: Any) -> list[Any]:
        start, stop = index * rows // micros, (index + 1) * rows // micros
        part = private.tree.map_structure(lambda t: None if t is None else t[start:stop], batch)
        return micro.gradients(
            part, engine.ratio(stop - start, rows), rows, fraction, known=_length(batch) is not None
        )

    return micro.update(engine.fold(micros, compute, [v.value for v in micro.variables]))


@final
class Micro:
    """A model's own step on micro-batches."""

    def __init__(self, model: Any, engine: Engine) -> None:
        check(model)
        self.variables = list(model.trainable_variables)
        self._model = model
        self._engine = engine
        self._missing = [False] * len(self.variables)

    def gradients(
        self, part: Any, share: Any, rows: Any, fraction: Any = 1.0, *, known: bool
    ) -> list[Any]:
        """Of each variable, for what the micro-batch counts; metrics are told of it.

        share: of the batch, which has so many `rows`, and is `fraction` of the global one. known:
        whether Keras knows its length.
        """
        model, engine = self._model, self._engine
        once = _counted_once(model, engine)
        before = engine.copies(once)
        counts = share * keras.ops.cast(rows, "float32") if known else share
        counts = counts / (_length(part) or 1)
        with step.holding_scope(fraction * share) as updates:
            type(model).train_step(model, part)
        for variable, value in zip(once, before, strict=True):
            variable.assign(value + (variable.value - value) * counts)
        (update,) = updates
        self._missing = [g is None for g in update.gradients]
        return [
            keras.ops.zeros_like(v.value) if g is None else keras.ops.convert_to_tensor(g)
            for v, g in zip(self.variables, update.gradients, strict=True)
        ]

    def update(self, sums: Sequence[Any]) -> step.Update:
        """What is to be applied, from the sums of what micro-batches gave."""
        gradients = [None if no else s for no, s in zip(self._missing, sums, strict=True)]
        return step.Update(self._model.optimizer, gradients, self.variables)


def _counted_once(model: Any, engine: Engine) -> list[Any]:
    """The states of outputs' own losses, where Keras counts a batch whose length is unknown in a
    graph as one."""
    if engine.framework == "torch":
        return []
    return [v for metric in private.output_losses(model) for v in metric.variables]


def _length(batch: Any) -> int | None:
    """As far as Keras knows it."""
    found: int | None = private.tree.flatten(batch)[0].shape[0]
    return found


def check(model: Any) -> None:
    """Only what Keras's own step does can be done in parts."""
    for name in ("train_step", "compute_metrics"):
        if getattr(type(model), name) is not getattr(keras.Model, name):
            raise Unsupported(
                "A step of one's own cannot be cut into micro-batches. Received: "
                f"{type(model).__name__}.{name} with accumulate=. Leave accumulate out, or use "
                "gradient_accumulation_steps of the optimizer."
            )
