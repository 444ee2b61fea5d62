"""A step of fit in micro-batches, one after the other: what the optimizer is to apply is their sum,
and only that is kept of them."""

from __future__ import annotations

from typing import Any

import keras

from dream._errors import Unsupported
from dream.adapters.keras import private, step
from dream.adapters.keras.engine import Engine


def held(model: Any, engine: Engine, batch: Any, fraction: Any) -> step.Update:
    """What Keras's own step would have the optimizer apply for the batch, a part's share.

    fraction: of the global batch.
    """
    check(model)
    rows = engine.rows(batch)
    micros = engine.micros(rows)
    variables = list(model.trainable_variables)
    once, counts = _counted_once(model, engine, batch, rows)
    missing = [False] * len(variables)

    def compute(micro: Any) -> list[Any]:
        start, stop = micro * rows // micros, (micro + 1) * rows // micros
        part = private.tree.map_structure(lambda t: None if t is None else t[start:stop], batch)
        share = engine.ratio(stop - start, rows)
        before = engine.copies(once)
        with step.holding_scope(fraction * share) as updates:
            type(model).train_step(model, part)
        for variable, value in zip(once, before, strict=True):
            variable.assign(value + (variable.value - value) * share * counts)
        (update,) = updates
        missing[:] = [g is None for g in update.gradients]
        return [
            keras.ops.zeros_like(v.value) if g is None else keras.ops.convert_to_tensor(g)
            for v, g in zip(variables, update.gradients, strict=True)
        ]

    sums = engine.fold(micros, compute, [v.value for v in variables])
    gradients = [None if no else s for no, s in zip(missing, sums, strict=True)]
    return step.Update(model.optimizer, gradients, variables)


def _counted_once(model: Any, engine: Engine, batch: Any, rows: Any) -> tuple[list[Any], Any]:
    """The states of outputs' own losses, where Keras counts each micro-batch as one, its length
    being unknown in a graph; and what the whole batch counts for there."""
    if engine.framework == "torch":
        return [], 1.0
    states = [v for metric in private.output_losses(model) for v in metric.variables]
    known = private.tree.flatten(batch)[0].shape[0] is not None
    return states, keras.ops.cast(rows, "float32") if known else 1.0


def check(model: Any) -> None:
    """Only what Keras's own step does can be done in parts."""
    for name in ("train_step", "compute_metrics"):
        if getattr(type(model), name) is not getattr(keras.Model, name):
            raise Unsupported(
                "A step of one's own cannot be cut into micro-batches. Received: "
                f"{type(model).__name__}.{name} with accumulate=. Leave accumulate out, or use "
                "gradient_accumulation_steps of the optimizer."
            )
