"""A Functional or Sequential model cut into parts, each a model of its own with the same layers.

Tensors that go from part to part are told by number; one may go past several parts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.keras import private
from dream.adapters.keras.private import made_by

_SAMPLES, _RUNS = 8, 5


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a model. takes, gives: the ids of the tensors that go in and come out; device:
    the index of the device it runs on."""

    model: Any
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    device: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A whole model in parts. inputs, outputs: the ids of its tensors, flat."""

    parts: tuple[Part, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """The parts that each part takes from."""
        return tuple(
            tuple(a for a, other in enumerate(self.parts) if set(other.gives) & set(part.takes))
            for part in self.parts
        )


Assign = Callable[[Sequence[Any]], Sequence[tuple[int, int]]]
"""(part, device) of each operation, given all in an order in which they can run; parts may come in
any number, but an operation's part is no earlier than those it takes from."""


def cut(model: Any, assign: Assign) -> Cut:
    operations = operations_of(model)
    homes = assign(operations)
    producer = {id(t): -1 for t in _flat(model.inputs)}
    producer |= {
        id(t): home
        for op, (home, _) in zip(operations, homes, strict=True)
        for t in _flat(op.output)
    }
    tensors = {id(t): t for op in operations for t in [*_flat(op.input), *_flat(op.output)]}
    outputs = [id(t) for t in _flat(model.outputs)]
    parts = []
    for home in sorted({home for home, _ in homes}):
        mine = [op for op, (where, _) in zip(operations, homes, strict=True) if where == home]
        others = [op for op, (where, _) in zip(operations, homes, strict=True) if where != home]
        made = [id(t) for op in mine for t in _flat(op.output)]
        takes = _once(id(t) for op in mine for t in _flat(op.input) if producer[id(t)] != home)
        wanted = {id(t) for op in others for t in _flat(op.input)} | set(outputs)
        gives = tuple(t for t in _once(made) if t in wanted)
        piece = keras.Model([tensors[t] for t in takes], [tensors[t] for t in gives])
        device = next(device for where, device in homes if where == home)
        parts.append(Part(piece, takes, gives, device))
    return Cut(tuple(parts), tuple(id(t) for t in _flat(model.inputs)), tuple(outputs))


def operations_of(model: Any) -> list[Any]:
    """All that a model calls, in order, its inputs left out. Refuses what has no such list."""
    if isinstance(model, keras.Sequential):
        found = list(model.layers)
    elif hasattr(model, "operations"):
        found = list(model.operations)
    else:
        raise Unsupported(
            "A model is cut between the layers of its graph, and this one's is hidden in call(). "
            f"Received: {type(model).__name__} {model.name!r}. Write it as a Sequential or "
            "functional model, or use 'sharded' or split='tensor'."
        )
    if not model.built:
        raise ConfigurationError(
            f"A model is cut once its shapes are known. Received: {model.name!r}, not built. "
            "Begin it with keras.Input."
        )
    found = [op for op in found if not isinstance(op, keras.layers.InputLayer)]
    _check_once(model, found)
    return found


def stages(wanted: int | Sequence[str], devices: int, costs: Mapping[str, float]) -> Assign:
    """Runs of operations, stage i on device i % devices. wanted: how many, as even in cost as
    may be; or the names of the layers that the later ones begin with."""

    def assign(operations: Sequence[Any]) -> list[tuple[int, int]]:
        names = [op.name for op in operations]
        if isinstance(wanted, int):
            starts = _even([costs.get(name, 0.0) for name in names], wanted)
        else:
            starts = [_index(names, name) for name in wanted]
        if starts != sorted(set(starts)) or 0 in starts:
            raise ConfigurationError(
                f"Stages begin one after another. Received: stages={wanted!r}, layers "
                f"{', '.join(names)}. Name layers in their order, not the first."
            )
        home = np.searchsorted(starts, np.arange(len(names)), side="right")
        return [(int(stage), int(stage) % devices) for stage in home]

    return assign


def _even(costs: Sequence[float], count: int) -> list[int]:
    """Where the later of `count` runs start, the largest run as small as may be."""
    if len(costs) < count:
        raise ConfigurationError(
            f"There are fewer layers than stages. Received: {len(costs)} layers, stages={count}. "
            f"Ask for {len(costs)} or fewer."
        )
    sums = np.concatenate([[0.0], np.cumsum(costs)])
    best: dict[tuple[int, int], tuple[float, int]] = {
        (i, 1): (sums[i], 0) for i in range(1, len(sums))
    }
    for runs in range(2, count + 1):
        for end in range(runs, len(sums)):
            choices = [
                (max(best[start, runs - 1][0], sums[end] - sums[start]), start)
                for start in range(runs - 1, end)
            ]
            best[end, runs] = min(choices)
    starts, end = [], len(costs)
    for runs in range(count, 1, -1):
        end = best[end, runs][1]
        starts.append(end)
    return starts[::-1]


def parameters(model: Any) -> dict[str, float]:
    """By the name of a layer how many it has."""
    return {
        layer.name: float(sum(int(np.prod(v.shape)) for v in layer.trainable_variables))
        for layer in model.layers
    }


def seconds(model: Any) -> dict[str, float]:
    """By the name of an operation how long it takes on a few samples, the shortest of some runs."""
    found = {}
    for op in operations_of(model):
        piece = keras.Model(op.input, op.output)
        samples = [keras.ops.zeros([_SAMPLES, *t.shape[1:]], t.dtype) for t in _flat(op.input)]
        given = samples[0] if len(samples) == 1 else samples
        times = []
        for _ in range(_RUNS):
            begin = time.perf_counter()
            piece(given)
            times.append(time.perf_counter() - begin)
        found[op.name] = min(times)
    return found


def _index(names: Sequence[str], name: str) -> int:
    if name not in names:
        raise ConfigurationError(
            f"No layer has this name. Received: {name!r}; the model has {', '.join(names)}. "
            "Correct it."
        )
    return names.index(name)


def _check_once(model: Any, operations: Sequence[Any]) -> None:
    """Refuse a layer that is called again: Keras tells of its first call alone."""
    known = {id(t) for t in _flat(model.inputs)} | {
        id(t) for op in operations for t in _flat(op.output)
    }
    used = [t for op in operations for t in _flat(op.input)] + _flat(model.outputs)
    for tensor in used:
        if id(tensor) not in known:
            again = made_by(tensor)
            raise Unsupported(
                "A layer that is called several times would be in several parts. Received: "
                f"{again.name!r} ({type(again).__name__}). Give each call a layer of its own, or "
                "use 'sharded' or split='tensor'."
            )


def _flat(nest: Any) -> list[Any]:
    return list(private.tree.flatten(nest))


def _once(ids: Any) -> tuple[int, ...]:
    return tuple(dict.fromkeys(ids))
