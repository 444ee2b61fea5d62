"""Ranks that hold parts of one model act together, each held to the others' order.

A collective that one rank enters alone would wait for ever. So before each the ranks say what they
are about to do, and a rank that is in something else has all of them raise.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dream._errors import Desynchronized, WorkerFailed
from dream.adapters.keras import private
from dream.adapters.keras.data.sources import digest_of
from dream.adapters.keras.optimizer import optimizers_of
from dream.collectives import Communicator

_NUMBERS = re.compile(r"_\d+")
"""Keras counts names through a process, and a rank may have made more objects than others."""


class PartialVariable:
    """A variable of which a rank has no more than a part; outside of a tf.function it reads as a
    whole.

    kept: all of it, while it may be read by one rank alone.
    """

    kept: NDArray[Any] | None = None
    trainable: bool
    name: str

    def read_together(self) -> NDArray[Any]:
        """All of it. Every rank calls it."""
        raise NotImplementedError

    def numpy(self) -> NDArray[Any]:
        return self.read_together() if self.kept is None else self.kept

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return np.asarray(self.numpy(), dtype)

    def __deepcopy__(self, memo: Any) -> tf.Variable:
        return tf.Variable(self.numpy(), trainable=self.trainable, name=self.name[:-2])


@final
class Consistency:
    """Before each collective, the ranks of one strategy agree on what comes."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._changes = 0

    def made(self, path: str, value: Any) -> Any:
        """Rank 0's first value of a variable, a tensor, which every rank makes now."""
        if self._communicator.world_size == 1:
            return value
        self._meet(
            "The ranks built different models.",
            "Build the same model on every rank, not behind a test of the rank; only values may "
            "differ, and rank 0's are taken.",
            "make", variable=_NUMBERS.sub("", path), shape=list(value.shape),
        )  # fmt: skip
        return self._communicator.broadcast(value)

    def changed(self, value: NDArray[Any]) -> None:
        """A variable was given a value by hand, of which each rank took its part."""
        if self._communicator.world_size > 1:
            content = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            self._changes = zlib.crc32(content.data, self._changes + 1)

    def step(self, kind: str) -> None:
        """Before a step. Values that were set on some ranks only are found out here."""
        if self._communicator.world_size == 1:
            return
        try:
            self._communicator.meet(f"{kind} step", set_by_hand=self._changes)
        except Desynchronized as error:
            raise Desynchronized(
                f"{error} Weights that lie in parts are read, set and loaded on all ranks alike."
            ) from error

    def read(self, name: str) -> None:
        """Before a variable is made whole."""
        self._meet(
            "A variable that lies in parts is read by all ranks together.",
            "For the weights call strategy.full_state(model), or model.save, which writes on rank "
            "0 alone, on every rank: not behind a test of the rank.",
            "read", variable=_NUMBERS.sub("", name),
        )  # fmt: skip

    def _meet(self, what: str, advice: str, call: str, **said: Any) -> None:
        """Have the ranks say that they make the same call."""
        if self._communicator.world_size == 1:
            return
        try:
            self._communicator.meet(call, **said)
        except (Desynchronized, WorkerFailed) as error:
            raise type(error)(f"{what} {error} {advice}") from error

    def compare(self, batch: Any) -> None:
        """Raise `Desynchronized` where a rank reads another batch. Every rank calls it."""
        if self._communicator.world_size == 1:
            return
        said = self._communicator.all_gather_object(
            digest_of([np.asarray(x) for x in private.tree.flatten(batch) if x is not None])
        )
        if len(set(said)) > 1:
            raise Desynchronized(
                "The ranks read different data. Received: a first batch that differs between "
                "ranks. Seed what draws or shuffles it, and read the same files in the same order "
                "on every rank; dream deals the batches out."
            )


@contextmanager
def whole(model: Any, *, here: Callable[[], bool]) -> Iterator[None]:
    """Inside, what a file of the model holds may be read by one rank alone. Every rank comes.
    here: whether this is one that will; asked once all are known to have come."""
    states = [v for o in optimizers_of(model) for v in o.variables]
    held = [v.value for v in [*model.variables, *states]]
    parts = [value for value in held if isinstance(value, PartialVariable)]
    try:
        for part in parts:
            array = part.numpy()
            part.kept = array if here() else None
        yield
    finally:
        for part in parts:
            part.kept = None
