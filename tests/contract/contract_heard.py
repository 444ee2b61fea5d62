"""What dream's logger said while a case ran."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class _Ear(logging.Handler):
    def __init__(self, word: str) -> None:
        super().__init__()
        self._word = word
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if self._word in record.getMessage():
            self.lines.append(record.getMessage())


@contextmanager
def heard(word: str) -> Iterator[list[str]]:
    """The lines that hold a word."""
    ear, logger = _Ear(word), logging.getLogger("dream")
    logger.addHandler(ear)
    try:
        yield ear.lines
    finally:
        logger.removeHandler(ear)
