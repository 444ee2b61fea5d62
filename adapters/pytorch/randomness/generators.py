"""The generators that a script draws from, kept in step on all ranks."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, final

import torch

from dream._log import Once, logger
from dream.adapters.pytorch.randomness.current import current, go_on_from, packed
from dream.adapters.pytorch.randomness.own_generators import digests_of, of_the_loop
from dream.collectives import Communicator
from dream.data.generators import (
    PYTHON_WORDS,
    go_on_in_numpy,
    go_on_in_python,
    numpy_is_seeded,
    numpy_state,
    numpy_words,
    python_place,
    python_state,
    python_word,
)

GIVEN = 2**32
"""Seeds that a script gives are below it; those that torch draws for itself hardly ever."""
_NAMES = ("torch's", "NumPy's", "Python's")

Words = tuple[Sequence[int], int, bool]
"""What ranks tell each other: a digest of each state, torch's seed, whether NumPy was seeded."""


def digests() -> tuple[int, int, int]:
    """Return a number for the state of each generator: torch's, NumPy's and Python's."""
    return (
        zlib.crc32(packed()),
        zlib.crc32(repr(numpy_words()).encode()),
        python_word(),
    )


def states() -> list[Any]:
    """Return the state of each generator, as plain values."""
    return [packed(), numpy_state(), python_state()]


def take(told: Sequence[Any], which: Sequence[bool]) -> None:
    """Set the generators that `which` says."""
    of_torch, of_numpy, of_python = told
    if which[0]:
        go_on_from(of_torch)
    if which[1]:
        go_on_in_numpy(of_numpy)
    if which[2]:
        go_on_in_python(of_python)


def words() -> Words:
    """Return what the other ranks are told of this one's generators."""
    return digests(), torch.initial_seed(), numpy_is_seeded()


@final
class InStep:
    """Whether the generators of all ranks are in step.

    apart: the script seeds torch by its rank, and keeps its own draws.
    """

    def __init__(self, ranks: Communicator) -> None:
        self.ranks = ranks
        self.apart = False
        self.say = Once()

    def start(self) -> None:
        """Begin alike, where a script has not seeded: as rank 0. Every rank calls it."""
        if self.ranks.world_size > 1:
            self.settle(self.ranks.all_gather_object(words()), begins=True)

    def settle(self, told: Sequence[Words], *, begins: bool = False) -> bool:
        """Go on as rank 0 where generators differ, unless the script has seeded them so. Returns
        whether they were said to have drawn other numbers.

        told: the words of all ranks. begins: nobody has drawn for the block yet.
        """
        differ = [len({states[i] for states, *_ in told}) > 1 for i in range(len(_NAMES))]
        seeds = {seed for _, seed, _ in told}
        self.apart = len(seeds) > 1 and any(seed < GIVEN for seed in seeds)
        if self.apart:
            self._say_apart()
        if self.apart or not any(differ):
            return False
        if begins and differ[1] and any(seeded for *_, seeded in told):
            self._say_apart()
            differ[1] = False
        if any(differ):
            take(self.ranks.broadcast_object(states()), differ)
        if not begins:
            names = " and ".join(n for n, d in zip(_NAMES, differ, strict=True) if d)
            self.say(
                f"the ranks have drawn other random numbers from {names} generator, by their rank "
                "or by how many samples they have, so they are not those of one device: all go on "
                "as rank 0. Draw for samples where they are read, in the dataset or the collate "
                "function; or in the loop by torch, a row for each of the batch's"
            )
        return not begins

    def _say_apart(self) -> None:
        self.say(
            "the script seeds its generators by rank, so each rank keeps its own draws: dropout "
            "and noise are not those of one device. Seed all ranks alike for that"
        )


_LOOKS, _PASSES = 2, 3
"""Steps of a pass in which a loop is seen to draw, in its first passes; later one of each."""
_ROWS = (
    "the loop draws from %s's generator, whose numbers are alike on every rank: one for each row "
    "of a batch, as %s, is not that of one device. Draw such by torch, as by torch.rand(len(x))"
)
_SEEN_AS = {"NumPy": "np.random.rand(len(x))", "Python": "[random.random() for _ in x]"}
_told: set[str] = set()


@final
class DrawWatch:
    """Says once that a loop draws from NumPy's generator or Python's, or one of its own of theirs,
    between two of its batches. How many numbers, and for what, is seen of Python's alone: fewer
    than the batch has rows are for none of them. passes: that have begun."""

    def __init__(self, passes: int = 0) -> None:
        self._left = _LOOKS if passes <= _PASSES else 1
        self._own: list[Any] = []
        self._rows = 0
        self._before: tuple[Any, list[int]] | None = None

    def handed(self, rows: int) -> None:
        """The loop has got a batch, of which this rank has so many rows."""
        if self._left and len(_told) < len(_SEEN_AS):
            self._own, self._rows = of_the_loop(), rows
            self._before = self._words()

    def asked(self) -> None:
        """It asks for the next one."""
        if self._before is None:
            return
        (numpys, pythons), self._before = self._before, None
        self._left -= 1
        of_numpy, of_python = self._words()
        if numpys != of_numpy:
            self._say("NumPy")
        drawn = [(b - a) % PYTHON_WORDS for a, b in zip(pythons, of_python, strict=True)]
        if self._rows > 1 and any(each >= self._rows for each in drawn):
            self._say("Python")

    def _say(self, whose: str) -> None:
        if whose not in _told:
            _told.add(whose)
            logger.info(_ROWS, whose, _SEEN_AS[whose])

    def _words(self) -> tuple[Any, list[int]]:
        pythons = [each for each in self._own if isinstance(each, random.Random)]
        others = [each for each in self._own if not isinstance(each, random.Random)]
        return (numpy_words(), digests_of(others)), [
            python_place(each) for each in (None, *pythons)
        ]


@final
class Pardoned(Iterator[Any]):
    """Whole batches; what their samples draw is alike on every rank. inner: the loader's iterator,
    which this one seems to be."""

    def __init__(self, inner: Iterator[Any]) -> None:
        self._inner = inner

    def __next__(self) -> Any:
        batch = next(self._inner)
        current.pardon()
        return batch

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
