"""What dream says: one line each, INFO and above on rank 0, warnings from every rank."""

from __future__ import annotations

import logging

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
