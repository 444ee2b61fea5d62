"""TensorFlow's generators, and Python's and NumPy's beside them: the same start on every rank."""

from __future__ import annotations

import random
import zlib
from secrets import randbits
from typing import Any, final

import numpy as np
import tensorflow as tf

from dream._log import logger
from dream.adapters.keras.randomness.start import Generators
from dream.adapters.tensorflow import private
from dream.collectives import Communicator

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
    own = (private.global_seed(), _python_word(), _numpy_word(), _numpy_is_seeded())
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
    first = ranks.broadcast_object((randbits(31), random.getstate(), _numpy_state()))
    if seeds[0] is None:
        _given = first[0]
        tf.random.set_seed(_given)
    if len(set(of_python)) > 1:
        version, words, gauss = first[1]
        random.setstate((version, tuple(words), gauss))
    if len(set(of_numpy)) > 1 and not numpy_apart:
        np.random.set_state(("MT19937", *first[2]))


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


def _python_word() -> int:
    return zlib.crc32(np.array(random.getstate()[1], np.uint32).tobytes())


def _numpy_state() -> list[Any]:
    _, keys, *rest = np.random.get_state(legacy=True)
    return [np.asarray(keys), *rest]


def _numpy_word() -> int:
    keys, *rest = _numpy_state()
    return zlib.crc32(repr(rest).encode(), zlib.crc32(keys.tobytes()))


def _numpy_is_seeded() -> bool:
    """Whether the script has seeded NumPy's generator: it keeps no sequence of seeds then."""
    found: Any = np.random
    return getattr(found.get_bit_generator(), "seed_seq", None) is None
