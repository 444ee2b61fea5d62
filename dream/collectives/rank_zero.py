"""What rank 0 does for all of a job's ranks."""

from __future__ import annotations

from collections.abc import Callable

from dream._errors import ConfigurationError, DreamError
from dream.collectives.communicator import Communicator


def at_rank_0(ranks: Communicator, act: Callable[[], str]) -> str:
    """Return what rank 0's act returns, on every rank; its error is raised on every rank."""
    said: list[str] = ["", ""]
    raised: Exception | None = None
    if ranks.rank == 0:
        try:
            said = ["", act()]
        except DreamError as error:
            raised, said = error, [type(error).__name__, str(error)]
        except Exception as error:  # told on every rank before it is raised here
            raised, said = error, ["DreamError", f"Rank 0 failed: {error}"]
    kind, words = ranks.broadcast_object(said)
    if raised is not None:
        raise raised
    if kind:
        raise (ConfigurationError if kind == "ConfigurationError" else DreamError)(words)
    return str(words)
