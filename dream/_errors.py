"""The exception tree.

DreamError
├── ConfigurationError    what was asked for cannot be, whatever the machine
├── Unsupported           it could be, but not with this framework, strategy or device
├── NotInstalled          a package or build is missing; the message names what to install
├── WorkerFailed          a rank of the job died, left early or never came
├── Desynchronized        ranks disagree on what they do together
└── CheckpointError       a checkpoint is torn, missing or of another model

Every message says what is wrong, what was received and what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING


class DreamError(Exception):
    """Base of everything dream raises on purpose."""

    if not TYPE_CHECKING:  # AutoGraph raises again as they are only errors that have just this
        __init__ = Exception.__init__


class ConfigurationError(DreamError, ValueError):
    """What was asked for cannot be, whatever the machine."""


class Unsupported(DreamError, NotImplementedError):
    """A framework, strategy or device cannot honour what was asked for."""


class NotInstalled(DreamError, ImportError):
    """A package or a build is missing; the message names what to install."""


class WorkerFailed(DreamError, RuntimeError):
    """A rank of the job died, left early or never came.

    rank: which, where one is to be named; traceback: its own, as text, where it left one.
    """

    def __init__(self, message: str, *, rank: int | None = None, traceback: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.traceback = traceback


class Desynchronized(DreamError, RuntimeError):
    """Ranks disagree on what they do together."""


class CheckpointError(DreamError, RuntimeError):
    """A checkpoint is torn, missing or of another model."""


_FEW = 8
"""Ranks in a row that are told one by one."""
_PUBLIC = (ConfigurationError, Unsupported, NotInstalled, WorkerFailed, Desynchronized,
           CheckpointError, DreamError)  # fmt: skip


def public_name(error: DreamError) -> str:
    """The name of its class, or of the one that stands for it outside dream: an error that goes to
    another process travels as this and its message."""
    return next(kind.__name__ for kind in _PUBLIC if isinstance(error, kind))


def named(name: str, message: str) -> DreamError:
    """The inverse; what has no such name becomes a `WorkerFailed`."""
    kinds = {kind.__name__: kind for kind in _PUBLIC}
    return kinds.get(name, WorkerFailed)(message)


def said(text: str, *kinds: type[DreamError]) -> str:
    """The message of the last error of these kinds that a traceback ends in or goes through; empty
    where there is none."""
    names = "|".join(kind.__name__ for kind in kinds)
    found = re.findall(rf"^\s*(?:dream\.[\w.]*)?(?:{names}): (.*)$", text, re.MULTILINE)
    return str(found[-1]) if found else ""


def listed(ranks: Iterable[int]) -> str:
    """Return `rank 3`, or `ranks 0, 2, 5-99`: of hundreds nobody reads each."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    many = len(runs) > 1 or len(runs[0]) > 1
    parts = [f"{run[0]}-{run[-1]}" if len(run) > _FEW else ", ".join(map(str, run)) for run in runs]
    return f"rank{'s' * many} {', '.join(parts)}"


def unknown(kind: str, received: str, known: Iterable[str]) -> ConfigurationError:
    """The error for a name that is not in a table: lists the table and the nearest name."""
    names = sorted(known)
    nearest = get_close_matches(received, names, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return ConfigurationError(
        f"Unknown {kind}. Received: {received!r}. Known: {', '.join(names) or 'none'}.{hint}"
    )
