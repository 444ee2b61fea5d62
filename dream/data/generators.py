"""Python's and NumPy's generators: what tells one state from another, and how to go on from one."""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

PYTHON_WORDS = 624
"""Numbers of 32 bits that Python's generator makes at a time."""
_PYTHON, _NUMPY = "python", "numpy"


def has_state(kind: type[Any]) -> bool:
    """Whether generators of a class of Python's go on from a state: the operating system's have
    none."""
    return not issubclass(kind, random.SystemRandom)


def python_place(generator: random.Random | None = None) -> int:
    """Return how many of those have been taken. generator: Python's own, if none."""
    return int((generator or random).getstate()[1][-1])


def python_word() -> int:
    """Return a number for the state of Python's generator, alike in every process."""
    return hash(random.getstate()[1]) & 0xFFFFFFFF  # of integers


def numpy_words() -> tuple[Any, ...]:
    """Return what tells one state of NumPy's generator from another."""
    _, keys, *rest = np.random.get_state(legacy=True)
    return zlib.crc32(np.asarray(keys).tobytes()), *rest


def numpy_is_seeded() -> bool:
    """Whether the script has seeded NumPy's generator: it keeps no sequence of seeds then."""
    found: Any = np.random
    return getattr(found.get_bit_generator(), "seed_seq", None) is None


def python_state() -> list[Any]:
    """Return the state of Python's generator, as plain values."""
    return list(random.getstate())


def numpy_state() -> list[Any]:
    """Return the state of NumPy's generator, as plain values."""
    _, keys, *rest = np.random.get_state(legacy=True)
    return [np.asarray(keys), *rest]


def go_on_in_python(state: list[Any]) -> None:
    """Have Python's generator go on from a state."""
    version, words, gauss = state
    random.setstate((version, tuple(words), gauss))


def go_on_in_numpy(state: list[Any]) -> None:
    """Have NumPy's generator go on from a state."""
    np.random.set_state(("MT19937", *state))


def state() -> dict[str, Any]:
    """Return the states of both, as a checkpoint keeps them."""
    kind, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)
    numpy_state = (kind, keys.tobytes(), place, has_gauss, gauss)  # type: ignore[union-attr]
    version, words, held = random.getstate()
    python_state = (version, np.array(words, np.uint32).tobytes(), held)
    return {_PYTHON: python_state, _NUMPY: numpy_state}


def restore(kept: Mapping[str, Any]) -> None:
    """Have both go on from states that a checkpoint kept."""
    version, words, held = kept[_PYTHON]
    random.setstate((version, tuple(np.frombuffer(words, np.uint32).tolist()), held))
    kind, keys, place, has_gauss, gauss = kept[_NUMPY]
    np.random.set_state((kind, np.frombuffer(keys, np.uint32), place, has_gauss, gauss))
