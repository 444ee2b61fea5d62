"""A Functional or Sequential model cut into stages, each a model of its own of the same layers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import keras
import numpy as np

from dream._errors import ConfigurationError, Unsupported, unknown
from dream._topology import Mesh
from dream.adapters.keras import private
from dream.adapters.keras.private import made_by
from dream.adapters.tensorflow.parallel.pipeline.checks import check_crossing
from dream.collectives import Communicator
from dream.pipeline.division import asked_microbatches, asked_stages, balanced, check_starts
from dream.pipeline.partition import Partition, Stage
from dream.pipeline.schedule import Kind

_SAMPLES, _RUNS = 8, 5


Assignment = Sequence[tuple[int, int]]
"""(stage, device) of each operation, given in an order in which they can run; an operation's stage
is no earlier than those it takes from."""


@dataclass(frozen=True, slots=True)
class StageDivision:
    """How a strategy divides models. assign: where a model's operations go, the same on every
    rank; microbatches: how many there are at most for each row of the mesh; asked: whether the
    user asked for so many."""

    assign: Callable[[Any, Sequence[Any], Communicator], Assignment]
    schedule: Kind
    microbatches: int
    asked: bool

    def partition(self, model: Any, communicator: Communicator) -> Partition:
        operations = operations_of(model)
        return partition(model, operations, self.assign(model, operations, communicator))


def partition(model: Any, operations: Sequence[Any], homes: Assignment) -> Partition:
    producer = {id(t): -1 for t in _flat(model.inputs)}
    for op, (home, _) in zip(operations, homes, strict=True):
        producer |= {id(t): home for t in _flat(op.output)}
    tensors = {id(t): t for op in operations for t in [*_flat(op.input), *_flat(op.output)]}
    outputs = [id(t) for t in _flat(model.outputs)]
    stages = []
    for home, device in sorted(set(homes)):
        mine = [op for op, (where, _) in zip(operations, homes, strict=True) if where == home]
        others = [op for op, (where, _) in zip(operations, homes, strict=True) if where != home]
        made = [id(t) for op in mine for t in _flat(op.output)]
        takes = _once(id(t) for op in mine for t in _flat(op.input) if producer[id(t)] != home)
        check_crossing([tensors[t] for t in takes])
        wanted = {id(t) for op in others for t in _flat(op.input)} | set(outputs)
        gives = tuple(t for t in _once(made) if t in wanted)
        stage = keras.Model([tensors[t] for t in takes], [tensors[t] for t in gives])
        stages.append(Stage(stage, takes, gives, device))
    return Partition(tuple(stages), tuple(id(t) for t in _flat(model.inputs)), tuple(outputs))


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
    _check_called_once(model, found)
    return found


def _check_called_once(model: Any, operations: Sequence[Any]) -> None:
    """Keras tells of a layer's first call alone."""
    known = {id(t) for t in _flat(model.inputs)}
    known |= {id(t) for op in operations for t in _flat(op.output)}
    used = [t for op in operations for t in _flat(op.input)] + _flat(model.outputs)
    for tensor in used:
        if id(tensor) not in known:
            again = made_by(tensor)
            raise Unsupported(
                "A layer that is called several times would be in several parts. Received: "
                f"{again.name!r} ({type(again).__name__}). Give each call a layer of its own, or "
                "use 'sharded' or split='tensor'."
            )


def pipeline(options: Mapping[str, Any], mesh: Mesh) -> StageDivision:
    """split="pipeline": runs of layers, run i on device i % devices."""
    named = options["stages"] if isinstance(options["stages"], (list, tuple)) else ()
    count = asked_stages(options, mesh.model)

    def assign(model: Any, operations: Sequence[Any], communicator: Communicator) -> Assignment:
        names = [op.name for op in operations]
        if named:
            starts = [_index(names, name) for name in named]
            check_starts(starts, named, names)
        else:
            costs = _seconds(operations) if options["balance"] == "time" else _parameters(model)
            # rank 0's, since each measures another time
            costs = communicator.broadcast_object([costs.get(name, 0.0) for name in names])
            starts = _even(costs, min(count, len(names)) if options["stages"] is None else count)
        runs = np.searchsorted(starts, np.arange(len(names)), side="right")
        return [(int(run), int(run) % mesh.model) for run in runs]

    asked = options["microbatches"] is not None
    schedule = cast(Kind, options["schedule"])
    return StageDivision(assign, schedule, asked_microbatches(options, count), asked)


def _even(costs: Sequence[float], count: int) -> list[int]:
    """Where the later of `count` runs start."""
    starts = balanced(costs, count, range(1, len(costs)))
    if starts is None:
        raise ConfigurationError(
            f"There are fewer layers than stages. Received: {len(costs)} layers, stages={count}. "
            f"Ask for {len(costs)} or fewer."
        )
    return list(starts)


def _parameters(model: Any) -> Mapping[str, float]:
    """By the name of a layer how many it has."""
    return {
        layer.name: float(sum(int(np.prod(v.shape)) for v in layer.trainable_variables))
        for layer in model.layers
    }


def _seconds(operations: Sequence[Any]) -> Mapping[str, float]:
    """By the name of an operation how long it takes on a few samples, the shortest of some runs."""
    found = {}
    for op in operations:
        alone = keras.Model(op.input, op.output)
        samples = [keras.ops.zeros([_SAMPLES, *t.shape[1:]], t.dtype) for t in _flat(op.input)]
        given = samples[0] if len(samples) == 1 else samples
        times = []
        for _ in range(_RUNS):
            begin = time.perf_counter()
            alone(given)
            times.append(time.perf_counter() - begin)
        found[op.name] = min(times)
    return found


def _index(names: Sequence[str], name: str) -> int:
    if name not in names:
        raise unknown("layer in stages=", name, names)
    return names.index(name)


def placed(options: Mapping[str, Any], mesh: Mesh) -> StageDivision:
    """split="layers": each layer on a device by its name, branches that do not need one another
    at the same time. A batch goes through each row in one piece."""

    def assign(_model: Any, operations: Sequence[Any], _: Communicator) -> Assignment:
        return _by_place(operations, options["place"], mesh.model)

    return StageDivision(assign, "gpipe", 1, asked=False)


def _by_place(
    operations: Sequence[Any], place: Mapping[str, object] | None, devices: int
) -> Assignment:
    """An operation joins the stage that it takes from where that is one, on the same device, and
    gives to nothing else: a branch is a stage of its own."""
    where = _devices(operations, place, devices)
    takers = Counter(id(t) for operation in operations for t in _flat(operation.input))
    producer: dict[int, int] = {}
    homes: list[tuple[int, int]] = []
    stages: list[int] = []  # each stage's device
    for operation in operations:
        device = where[operation.name]
        taken = [id(t) for t in _flat(operation.input)]
        before = {producer.get(t, -1) for t in taken}
        home = before.pop() if len(before) == 1 else -1
        if home < 0 or stages[home] != device or any(takers[t] > 1 for t in taken):
            home = len(stages)
            stages.append(device)
        homes.append((home, device))
        producer |= {id(t): home for t in _flat(operation.output)}
    return homes


def _devices(
    operations: Sequence[Any], place: Mapping[str, object] | None, devices: int
) -> dict[str, int]:
    """By the name of an operation its device. What has no layer's name stays where its input is."""
    layers = [op.name for op in operations if isinstance(op, keras.layers.Layer)]
    if place is None:
        place = {name: index * devices // len(layers) for index, name in enumerate(layers)}
    _check_place(place, layers, devices)
    found: dict[str, int] = {}
    made: dict[int, int] = {}
    for operation in operations:
        given = place.get(operation.name)
        inherited = next((made[id(t)] for t in _flat(operation.input) if id(t) in made), 0)
        found[operation.name] = given if isinstance(given, int) else inherited
        made |= {id(t): found[operation.name] for t in _flat(operation.output)}
    return found


def _check_place(place: Mapping[str, object], layers: Sequence[str], devices: int) -> None:
    for name, device in place.items():
        if name not in layers:
            raise unknown("layer in place=", name, layers)
        if not isinstance(device, int) or not 0 <= device < devices:
            raise ConfigurationError(
                f"A layer is placed on a device by its index, below model={devices}. Received: "
                f"{name!r}: {device!r}. Correct it, or take more devices."
            )


def _flat(nest: Any) -> list[Any]:
    return list(private.tree.flatten(nest))


def _once(ids: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(ids))
