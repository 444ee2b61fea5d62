"""A model in stages, and which tensors go from which stage to which, told by number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

from dream.pipeline.schedule import Kind, StageGraph, StageTask, order

Letter = tuple[str, int, int, int]
"""A message, the same on every rank: (kind, tensor, microbatch, stage of the sender)."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A piece of a model. takes, gives: the ids of the tensors that go in and come out; device:
    the index in a row of the mesh of the device it runs on."""

    model: Any
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    device: int


@final
class Partition:
    """A whole model in stages. inputs, outputs: the ids of its tensors, flat; a tensor may go past
    several stages. The loss is one stage more, the last, where the last of the stages that give
    outputs is. `takes`, `gives` and `devices` are by stage, `maker` by tensor."""

    def __init__(
        self, stages: Sequence[Stage], inputs: tuple[int, ...], outputs: tuple[int, ...]
    ) -> None:
        self.stages, self.inputs, self.outputs = stages, inputs, outputs
        self.loss = len(stages)
        self.takes = [*(stage.takes for stage in stages), outputs]
        self.gives = [*(stage.gives for stage in stages), ()]
        self.maker = {t: s for s, gives in enumerate(self.gives) for t in gives}
        before = tuple(
            tuple(sorted({self.maker[t] for t in takes if t in self.maker})) for takes in self.takes
        )
        self.devices = (*(stage.device for stage in stages), stages[before[-1][-1]].device)
        self.graph = StageGraph(self.devices, before)

    def tasks(
        self, row: int, rows: int, microbatches: int, kind: Kind, *, training: bool
    ) -> list[StageTask]:
        """The tasks of one row of the mesh, which takes every rows-th microbatch, in the order of
        time."""
        mine = range(row, microbatches, rows)
        return [
            StageTask(t.stage, mine[t.microbatch], t.backward)
            for t in order(self.graph, len(mine), kind)
            if training or not t.backward
        ]

    def on(self, device: int, tasks: Iterable[StageTask]) -> list[StageTask]:
        return [task for task in tasks if self.devices[task.stage] == device]

    def takers(self, t: int) -> list[int]:
        """The stages that take a tensor."""
        return [s for s, takes in enumerate(self.takes) if t in takes]

    def goes_to(self, t: int) -> list[int]:
        """The other devices that a tensor is sent to."""
        return sorted({self.devices[s] for s in self.takers(t)} - {self.comes_from(t)})

    def comes_from(self, t: int) -> int:
        return self.devices[self.maker[t]]

    def letters(self, tasks: Iterable[StageTask], to: int) -> Iterator[Letter]:
        """List the tensors that a device which runs these tasks sends to another, in order."""
        for task in tasks:
            if not task.backward:
                for t in self.gives[task.stage]:
                    if to in self.goes_to(t):
                        yield "value", t, task.microbatch, task.stage
                continue
            for t in self.takes[task.stage]:
                if t in self.maker and self.comes_from(t) == to != self.devices[task.stage]:
                    yield "gradient", t, task.microbatch, task.stage
