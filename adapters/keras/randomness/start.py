"""Where the orders of fit's samples come from: generators that are alike on all ranks, or a number
that rank 0 draws."""

from __future__ import annotations

import random
import zlib
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from secrets import randbits
from typing import Any

import keras
import numpy as np

from dream._errors import ConfigurationError
from dream._log import logger
from dream.collectives import Communicator

_PYTHON = "python"


class Generators(ABC):
    """The generators that Keras draws the order of samples from."""

    name: str
    """The framework's."""

    @abstractmethod
    def state(self) -> bytes | None:
        """Say what the framework's generator goes on from; None where every process would draw
        something else."""

    @abstractmethod
    def restore(self, state: bytes) -> bool:
        """Have it go on from there; whether it now does."""

    @abstractmethod
    def seeded(self) -> object:
        """Return what tells a script that seeds by its rank from one that does not."""

    @abstractmethod
    def now(self) -> Any:
        """Return the whole state of the framework's own generator, as plain values."""

    @abstractmethod
    def go_on_from(self, state: Any) -> None:
        """Have the framework's own generator go on from where `now` found one."""

    def aside(self) -> AbstractContextManager[Any]:
        """Inside, what Keras's functions draw by is as the framework has it."""
        return nullcontext()

    def of(self, x: Any) -> bytes | None:
        """Say what the order of fit's `x` is drawn from."""
        return _python() if isinstance(x, keras.utils.PyDataset) else self.state()

    def kept(self) -> dict[str, str]:
        """Return all that an order may be drawn from, to be kept."""
        states = {_PYTHON: _python(), self.name: self.state()}
        return {n: b64encode(state).decode() for n, state in states.items() if state is not None}

    def go_on(self, kept: Mapping[str, str], *, python: bool) -> None:
        """Have the next order be drawn from there. python: whether Python's generator draws it."""
        found = kept.get(_PYTHON if python else self.name)
        if found is not None and python:
            words = np.frombuffer(b64decode(found), np.uint32).tolist()
            random.setstate((3, tuple(words), None))
        elif found is None or not self.restore(b64decode(found)):
            raise ConfigurationError(
                "The order of samples in a state that was kept in mid-epoch cannot be drawn again "
                f"here. Received: one that {', '.join(kept) or 'nothing'} drew, for {self.name}. "
                "Seed the script as before (keras.utils.set_random_seed), or give "
                "dream.strategy(seed=...), whose order any framework draws."
            )


def seed_of_order(
    communicator: Communicator, generators: Generators, given: Mapping[str, Any]
) -> int | None:
    """Return None where every rank draws one order from its own generators, as one device would;
    else a number of rank 0's. given: fit's arguments."""
    if communicator.world_size == 1 or not given["shuffle"]:
        return None
    own = generators.of(given["x"])
    start = None if own is None else zlib.crc32(own)
    said = communicator.all_gather_object((start, randbits(31)))
    starts = {start for start, _ in said}
    if len(starts) == 1 and None not in starts:
        return None
    if starts != {None}:
        logger.warning(
            "The ranks' random generators are not alike, so that each would shuffle in an order of "
            "its own. Received: a script that seeds by its rank, or draws on some ranks only. The "
            "order is one that rank 0 draws; seed alike on every rank for the order of one device."
        )
    return int(said[0][1])


def _python() -> bytes:
    return np.array(random.getstate()[1], np.uint32).tobytes()
