"""split="layers": each layer on a device by its name; branches that do not need one another run
at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, final

import keras

from dream._errors import ConfigurationError
from dream._mesh import Mesh
from dream.adapters.keras import private
from dream.adapters.tensorflow.parallel.split import cutting
from dream.adapters.tensorflow.parallel.split.choice import Choice
from dream.adapters.tensorflow.parallel.split.schedule import Kind
from dream.collectives import Communicator


@final
class Layers(Choice):
    """`model_parallel` with split="layers". A batch goes through in one piece for each row."""

    def __init__(self, options: Mapping[str, object], axes: Mesh) -> None:
        place = options["place"]
        assert place is None or isinstance(place, Mapping)
        self._place = place
        self._axes = axes

    def cut(self, model: Any, communicator: Communicator) -> cutting.Cut:
        size = self._axes.model
        return cutting.cut(model, lambda operations: _assign(operations, self._place, size))

    @property
    def kind(self) -> Kind:
        return "gpipe"

    @property
    def microbatches(self) -> int:
        return 1


def _assign(
    operations: Sequence[Any], place: Mapping[str, object] | None, devices: int
) -> list[tuple[int, int]]:
    """An operation joins the part that it takes from where that is one, on the same device, and
    gives to nothing else: a branch is a part of its own."""
    where = _devices(operations, place, devices)
    takers = Counter(id(t) for operation in operations for t in _flat(operation.input))
    producer: dict[int, int] = {}
    homes: list[tuple[int, int]] = []
    parts: list[int] = []  # each part's device
    for operation in operations:
        device = where[operation.name]
        taken = [id(t) for t in _flat(operation.input)]
        before = {producer.get(t, -1) for t in taken}
        home = before.pop() if len(before) == 1 else -1
        if home < 0 or parts[home] != device or any(takers[t] > 1 for t in taken):
            home = len(parts)
            parts.append(device)
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
    _check(place, layers, devices)
    found: dict[str, int] = {}
    made: dict[int, int] = {}
    for operation in operations:
        given = place.get(operation.name)
        inherited = next((made[id(t)] for t in _flat(operation.input) if id(t) in made), 0)
        found[operation.name] = given if isinstance(given, int) else inherited
        made |= {id(t): found[operation.name] for t in _flat(operation.output)}
    return found


def _check(place: Mapping[str, object], layers: Sequence[str], devices: int) -> None:
    unknown = [name for name in place if name not in layers]
    if unknown:
        raise ConfigurationError(
            f"No layer has this name. Received: place entry {unknown[0]!r}; the model has "
            f"{', '.join(layers)}. Correct it."
        )
    for name, device in place.items():
        if not isinstance(device, int) or not 0 <= device < devices:
            raise ConfigurationError(
                f"A layer is placed on a device by its index, below model={devices}. Received: "
                f"{name!r}: {device!r}. Correct it, or take more devices."
            )


def _flat(nest: Any) -> list[Any]:
    return list(private.tree.flatten(nest))
