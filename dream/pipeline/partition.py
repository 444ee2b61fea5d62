"""A model in stages, and which tensors go from which stage to which, told by number; and
how they go, between the devices of a row of the mesh, each told by its index in the row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from dream.collectives import Communicator
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


class Mail(ABC):
    """A device may send a letter to itself."""

    @abstractmethod
    def send(self, letter: Letter, tensor: Any, source: int, to: int) -> None: ...

    @abstractmethod
    def take(self, letter: Letter, source: int, to: int) -> Any: ...


@final
class LocalMail(Mail):
    """Within a process: what is taken is there, by the order of the schedule."""

    def __init__(self) -> None:
        self._box: dict[tuple[Letter, int], Any] = {}

    def send(self, letter: Letter, tensor: Any, source: int, to: int) -> None:
        self._box[letter, to] = tensor

    def take(self, letter: Letter, source: int, to: int) -> Any:
        return self._box.pop((letter, to))


@final
class RankMail(Mail):
    """Between ranks, each tensor awaited in the order in which its sender computes it. ranks: by
    device; coming: by device, its letters to this one."""

    def __init__(
        self,
        communicator: Communicator,
        ranks: Sequence[int],
        coming: Mapping[int, Iterable[Letter]],
    ) -> None:
        self._communicator, self._ranks = communicator, ranks
        self._coming = {device: deque(letters) for device, letters in coming.items()}
        self._box: dict[tuple[int, Letter], Any] = {}

    def send(self, letter: Letter, tensor: Any, source: int, to: int) -> None:
        """None is sent as a tensor without elements."""
        if source == to:
            self._box[source, letter] = tensor
        else:
            given = np.zeros(0, np.float32) if tensor is None else tensor
            self._communicator.isend(given, self._ranks[to])

    def take(self, letter: Letter, source: int, to: int) -> Any:
        """Wait for it, and keep what comes before it."""
        while (source, letter) not in self._box:
            first = self._coming[source].popleft()
            given = self._communicator.receive(self._ranks[source])
            self._box[source, first] = None if given.shape == (0,) else given
        return self._box.pop((source, letter))
