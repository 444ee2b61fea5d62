"""Tensors that go between the devices of a row of the mesh, each told by its index in the row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np

from dream.collectives import Communicator
from dream.pipeline.partition import Letter


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
