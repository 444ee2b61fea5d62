"""What dream says: one line each, INFO and above on rank 0, warnings from every rank."""

from __future__ import annotations

import logging
from typing import final

logger = logging.getLogger("dream")


def speak_as(rank: int) -> None:
    """Set the level by rank, and write to stderr unless the user's logging already does."""
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("dream: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO if rank == 0 else logging.WARNING)


@final
class Once:
    """Says each line once, of those that it is given. Two are one line where they differ in what is
    put into them alone."""

    def __init__(self, level: int = logging.INFO) -> None:
        self._level = level
        self._said: set[str] = set()

    def __call__(self, line: str, *words: object) -> None:
        if line not in self._said:
            self._said.add(line)
            logger.log(self._level, line, *words)

    def __contains__(self, line: str) -> bool:
        return line in self._said


say_once, warn_once = Once(), Once(logging.WARNING)
"""For what is said once in a process."""
