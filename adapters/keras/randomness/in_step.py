"""All ranks' generators, at rank 0's state again after what trains: what the script draws next is
alike everywhere."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, final

import keras

from dream._log import say_once
from dream.adapters.keras import private
from dream.adapters.keras.consistency import seeds_of
from dream.adapters.keras.engine import Engine
from dream.data import generators

Word = tuple[object, list[int]]
"""What ranks tell each other: what the script seeded the framework with, a digest of each state."""
_NAMES = ("Python's", "NumPy's", "the framework's", "Keras's")
_ahead = False


@contextmanager
def reading_ahead(threads: bool) -> Iterator[None]:
    """Inside, Python's and NumPy's generators are left alone where `threads` draw batches from
    them: how far each rank's have read ahead is a matter of time, and the batches are compared."""
    global _ahead
    before, _ahead = _ahead, _ahead or threads
    try:
        yield
    finally:
        _ahead = before


@final
class InStep:
    """Keeps the generators of all that read a model's data in step.

    kept: whether there is something to keep.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.kept = engine.readers.world_size > 1 and not engine.mixed

    def settle(self, model: Any) -> None:
        """Have all ranks go on as rank 0. Every rank calls it."""
        if self.kept:
            self.heard(self._engine.readers.all_gather_object(self.word(model)), model)

    def word(self, model: Any) -> Word:
        """Return what the other ranks are told of this one's generators."""
        plain = () if _ahead else (generators.python_word(), generators.numpy_words())
        states = (*(plain or (None, None)), self._own(), _seeds(model))
        return self._engine.generators.seeded(), [zlib.crc32(repr(s).encode()) for s in states]

    def heard(self, told: Sequence[Any], model: Any) -> None:
        """Go on as rank 0 where generators differ, unless the script seeds by its rank.

        told: the words of all ranks, in rank order.
        """
        if any(seed != told[0][0] for seed, _ in told):
            return
        differ = [len({states[i] for _, states in told}) > 1 for i in range(len(_NAMES))]
        if not any(differ):
            return
        first = self._engine.readers.broadcast_object(
            [generators.python_state(), generators.numpy_state(), self._own(), _seeds(model)]
        )
        takes: list[Callable[[Any], None]] = [
            generators.go_on_in_python, generators.go_on_in_numpy,
            self._engine.generators.go_on_from, partial(_go_on_in_keras, model),
        ]  # fmt: skip
        for take, state, apart in zip(takes, first, differ, strict=True):
            if apart:
                take(state)
        names = " and ".join(n for n, apart in zip(_NAMES, differ, strict=True) if apart)
        say_once(
            f"the ranks have drawn other random numbers from {names} generators, by their rank or "
            "by how many samples they have, so they are not those of one device: all go on as rank "
            "0. Draw for samples where they are read, in the dataset"
        )

    def _own(self) -> Any:
        return self._engine.generators.now()


def _seeds(model: Any) -> list[Any]:
    """Return the states of the model's seed generators, and last the shared one's, or None."""
    shared = private.shared_seed()
    states = [v for v in seeds_of(model) if shared is None or v is not shared.state]
    found = [_numbers(state) for state in states]
    return [*found, None if shared is None else _numbers(shared.state)]


def _numbers(state: Any) -> list[int]:
    numbers: list[int] = keras.ops.convert_to_numpy(state.value).tolist()
    return numbers


def _go_on_in_keras(model: Any, told: Sequence[Any]) -> None:
    *values, of_shared = told
    shared = private.shared_seed()
    states = [v for v in seeds_of(model) if shared is None or v is not shared.state]
    if of_shared is None:
        private.share_seed(None)
    else:
        shared = shared or keras.random.SeedGenerator(0)
        private.share_seed(shared)
        states, values = [*states, shared.state], [*values, of_shared]
    for state, value in zip(states, values, strict=True):
        state.assign(keras.ops.convert_to_tensor(value, state.dtype))
