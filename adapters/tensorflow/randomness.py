"""TensorFlow's generators, and Python's and NumPy's beside them: the same start on every rank."""

from __future__ import annotations

from secrets import randbits
from typing import Any, final

import tensorflow as tf

from dream._log import logger
from dream.adapters.keras.randomness.start import Generators
from dream.adapters.tensorflow import private
from dream.collectives import Communicator
from dream.data import generators

_given: int | None = None
"""The seed that this process was given by `start`, not by its script."""


def seed(number: int) -> None:
    """Seed TensorFlow's generators, for a script that may not do so."""
    tf.random.set_seed(number)


def start(ranks: Communicator) -> None:
    """Begin alike on all ranks where a script has not seeded: as rank 0. Every rank calls it. A
    script that seeds by its rank keeps its own draws, which is said."""
    if ranks.world_size == 1:
        return
    own = (
        private.global_seed(),
        generators.python_word(),
        generators.numpy_words(),
        generators.numpy_is_seeded(),
    )
    told = ranks.all_gather_object(own)
    seeds, of_python, of_numpy, seeded = zip(*told, strict=True)
    apart = len(set(seeds)) > 1
    numpy_apart = len(set(of_numpy)) > 1 and any(seeded)
    if apart or numpy_apart:
        logger.info(
            "the script seeds its generators by rank, so each rank keeps its own draws: what it "
            "draws for its data and layers is not what one device draws. Seed all ranks alike"
        )
    if apart:
        return
    global _given
    states = (randbits(31), generators.python_state(), generators.numpy_state())
    first = ranks.broadcast_object(states)
    if seeds[0] is None:
        _given = first[0]
        tf.random.set_seed(_given)
    if len(set(of_python)) > 1:
        generators.go_on_in_python(first[1])
    if len(set(of_numpy)) > 1 and not numpy_apart:
        generators.go_on_in_numpy(first[2])


@final
class TensorFlowGenerators(Generators):
    """Orders hang on the seed alone that the script gave: what tf.data draws in a graph begins anew
    each pass."""

    name = "tensorflow"

    def state(self) -> bytes | None:
        number = private.global_seed()
        return None if number in (None, _given) else str(number).encode()

    def restore(self, state: bytes) -> bool:
        return self.state() == state

    def seeded(self) -> int | None:
        return private.global_seed()

    def now(self) -> list[Any]:
        return private.eager_draws()

    def go_on_from(self, state: list[Any]) -> None:
        private.go_on_drawing(state)
