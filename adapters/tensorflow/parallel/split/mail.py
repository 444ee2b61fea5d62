"""Tensors that go from rank to rank, each awaited in the order in which its sender computes it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, final

import tensorflow as tf

from dream.collectives import Communicator

Letter = tuple[str, int, int, int]
"""(kind, tensor, microbatch, part of the sender), the same on every rank."""


@final
class Mail:
    """What one rank sends and is sent in a step. coming: by rank, its letters to this one."""

    def __init__(self, communicator: Communicator, coming: Mapping[int, Iterable[Letter]]) -> None:
        self._communicator = communicator
        self._coming = {rank: deque(letters) for rank, letters in coming.items()}
        self._box: dict[tuple[int, Letter], Any] = {}

    def send(self, tensor: Any, to: int) -> None:
        """None is sent as a tensor without elements."""
        self._communicator.isend(tf.zeros((0,)) if tensor is None else tensor, to)

    def take(self, source: int, letter: Letter) -> Any:
        """What the rank sent by this name, waited for; what comes before it is kept."""
        while (source, letter) not in self._box:
            first = self._coming[source].popleft()
            self._box[source, first] = self._communicator.receive(source)
        tensor = self._box.pop((source, letter))
        return None if tensor.shape == (0,) else tensor
