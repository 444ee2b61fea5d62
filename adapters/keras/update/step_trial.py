"""A step of the user's own, tried on rows of a batch that is made up: what it makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from dream.adapters.keras import consistency, kinds, optimizer, private
from dream.adapters.keras.data.share import BatchShare
from dream.adapters.keras.engine import Array, Engine
from dream.adapters.keras.figures import StepFigures
from dream.adapters.keras.update import trial

MEANS = trial.CUT / kinds.ROWS, 1 - trial.CUT / kinds.ROWS
SUMS = 1.0, 1.0
"""What two parts' values count for in the whole's."""
SIZES = 1000.0, 10.0
"""How many times larger one part is made: the latter where a step comes to no number with the
former, as an exponential does."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a step made of a batch: figures that no metric keeps, single numbers that metrics were
    updated by, and what those weighed, gradients that optimizers were given, learning rates, and by
    variable what became of states, and by how much metrics grew."""

    figures: dict[str, Array]
    numbers: list[tuple[Any, Array, Array | None]]
    gradients: list[Array]
    rates: list[Array]
    states: list[Array]
    gains: list[Array]


def found_by(
    model: Any,
    engine: Engine,
    batch: Any,
    states: Sequence[Any],
    metrics: Sequence[Any],
    step: str = "train_step",
    size: float = 0.0,
) -> list[Found] | None:
    """Return what comes of the whole, of its two parts, and of the whole where metrics have seen
    others before; None where the step takes no batch that is made up. size: how many times larger
    one part is, if it is to be."""
    even = trial.widened(kinds.made_up(batch, classes=2))
    made_up = stretched(even, size) if size else even

    def take(rows: slice, start: float | None = None) -> Found:
        return of_rows(model, engine, made_up, rows, states, metrics, start, step)

    try:
        return [*map(take, (slice(None), *trial.PARTS)), take(slice(None), 1.0)]
    except Exception:
        return None


def of_rows(
    model: Any,
    engine: Engine,
    made_up: Any,
    rows: slice,
    states: Sequence[Any],
    metrics: Sequence[Any],
    start: float | None = None,
    step: str = "train_step",
    draw: int | None = None,
) -> Found:
    """Take the step on rows of a batch; all its changes are undone. start: values of all
    metrics; None for those that they have. draw: as in `trial.take`."""

    def run(part: Any) -> Found:
        figures = StepFigures(engine, BatchShare(1.0, 1.0), step)
        with optimizer.holding_scope(1.0) as held:
            for variable in [] if start is None else consistency.metric_states(model):
                variable.assign(ops.full_like(variable.value, start))
            before = [trial.array(v.value) for v in metrics]
            with figures.noting():
                logs = getattr(type(model), step)(model, part)
            return Found(
                {n: trial.array(x) for n, x in figures.own_by_name(logs).items()},
                [
                    (metric, trial.array(value), None if w is None else trial.array(w))
                    for metric, value, w in figures.numbers
                ],
                [trial.array(g) for update in held for g in update.gradients if g is not None],
                [
                    trial.array(v.value)
                    for o in optimizer.optimizers_of(model)
                    for v in _numbers_of(o)
                ],
                [trial.array(v.value) for v in states],
                [trial.array(v.value) - old for v, old in zip(metrics, before, strict=True)],
            )

    return trial.take(model, engine, made_up, rows, run, draw=draw)


def add_up(
    found: Sequence[Sequence[Array]],
    parts: tuple[float, float] = MEANS,
    times: float = 1.0,
) -> bool:
    """Whether the whole's values are what the parts' add up to."""
    whole, first, second, *_ = found
    if not len(whole) == len(first) == len(second):
        return False
    both = [parts[0] * a + parts[1] * b for a, b in zip(first, second, strict=True)]
    return trial.are_close(whole, both, times)


def _numbers_of(held: Any) -> list[Any]:
    return private.numbers_of(getattr(held, "inner_optimizer", held))


def are_finite(arrays: Iterable[Array]) -> bool:
    return all(np.isfinite(array).all() for array in arrays)


def stretched(batch: Any, size: float) -> Any:
    """The same, uneven, but for its sample weights."""
    if not isinstance(batch, tuple):
        return kinds.uneven(batch, size)
    return (*kinds.uneven(batch[:2], size), *batch[2:])
