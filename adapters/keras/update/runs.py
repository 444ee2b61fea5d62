"""The graph of a Keras model as runs of calls, each of which can be computed again as one: two
halves, theirs, and so on. A half ends where few tensors pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import keras

from dream.adapters.keras.update import private

Follow = Callable[["Run", list[Any], Any], Sequence[Any]]
"""Makes a run's calls: of the values of what it needs, and `training`."""


@final
class Run:
    """Two calls of a graph or more. needs, gives: tensors that go in and come out, by the ids of
    what stands for them. parts: runs, and single calls."""

    def __init__(self, calls: Sequence[Any], later: frozenset[int]) -> None:
        """later: tensors that are needed after it."""
        made = {id(x): None for call in calls for x in call.outputs}
        used = {id(x): None for call in calls for x in call.input_tensors}
        self.needs = [place for place in used if place not in made]
        self.gives = [place for place in made if place in later]
        operations = {id(call.operation): call.operation for call in calls}.values()
        self.layers = [each for each in operations if isinstance(each, keras.Layer)]
        cut = _narrowest(calls, later)
        needed = frozenset(id(x) for call in calls[cut:] for x in call.input_tensors)
        self.parts: list[Run | Any] = [
            *_part(calls[:cut], later | needed), *_part(calls[cut:], later)
        ]  # fmt: skip

    @property
    def name(self) -> str:
        return f"{self.layers[0].name} to {self.layers[-1].name}" if self.layers else "operations"

    def runs(self) -> Iterator[Run]:
        """Yield the runs in it, the larger before those in them."""
        for part in self.parts:
            if isinstance(part, Run):
                yield part
                yield from part.runs()

    def values(self, given: dict[int, Any], training: Any, follow: Follow) -> dict[int, Any]:
        """Return what its calls make, beside what they are given."""
        for part in self.parts:
            if isinstance(part, Run):
                found = follow(part, [given[place] for place in part.needs], training)
                given.update(zip(part.gives, found, strict=True))
            else:
                made = private.make_call(part, given, training)
                given.update(zip(map(id, part.outputs), made, strict=False))
        return given


def whole(graph: Any) -> Run | None:
    """Return all of a graph, where its calls follow from its inputs."""
    calls = private.calls_in(graph)
    if len(calls) < 2:
        return None
    run = Run(calls, frozenset(map(id, graph.outputs)))
    return run if {*run.needs} <= {*map(id, graph.inputs)} else None


def _part(calls: Sequence[Any], later: frozenset[int]) -> Sequence[Any]:
    return calls if len(calls) < 2 else [Run(calls, later)]


def _narrowest(calls: Sequence[Any], later: frozenset[int]) -> int:
    """Return where the fewest tensors pass, of the places in the middle half."""
    last = {id(x): at for at, call in enumerate(calls) for x in call.input_tensors}
    first = {id(x): at for at, call in enumerate(calls) for x in call.outputs}
    lives = [
        (first.get(place, -1), len(calls) if place in later else last.get(place, -1))
        for place in {**last, **first}
    ]
    half, edge = len(calls) / 2, max(1, len(calls) // 4)

    def passing(cut: int) -> tuple[int, float]:
        return sum(born < cut <= ends for born, ends in lives), abs(cut - half)

    return min(range(edge, len(calls) - edge + 1), key=passing)
