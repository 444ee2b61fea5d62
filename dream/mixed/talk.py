"""What ranks of two frameworks tell one another between collectives."""

from __future__ import annotations

from typing import TypeVar

from dream._errors import Desynchronized
from dream.collectives import Communicator

T = TypeVar("T")
"""A plain value."""


def told(communicator: Communicator, value: T, doing: str) -> list[T]:
    """Every rank's value, in rank order. doing: what this rank is about, which must be what all
    are about: frameworks differ in what they say when."""
    said: list[tuple[str, T]] = communicator.all_gather_object((doing, value))
    for rank, (theirs, _) in enumerate(said):
        if theirs != said[0][0]:
            raise Desynchronized(
                "Ranks of two frameworks take the same steps in the same order. Received: rank 0 "
                f"{said[0][0]}, rank {rank} {theirs}. With fit on one, use Keras's fit on all; "
                "with a loop of torch's, strategy.prepare(data) and strategy.train_step on "
                "TensorFlow."
            )
    return [value for _, value in said]
