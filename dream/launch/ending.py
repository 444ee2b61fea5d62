"""How a rank ended, and whose end came first. Pure: no process is touched here."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known of a rank's end.

    code: its exit code, minus the signal's number if a signal ended it; None while it still runs
        and has reported an error.
    time: when it failed, by its own report, else when it ended; seconds since the epoch.
    victim: it failed as ranks do whose peer is gone.
    text: its traceback, else the end of what it wrote to stderr.
    """

    rank: int
    code: int | None
    time: float
    victim: bool = False
    text: str = ""

    @property
    def failed(self) -> bool:
        return self.code != 0

    @property
    def how(self) -> str:
        """"exit code 3" or "SIGKILL (signal 9)"."""
        if self.code is None:
            return "an error"
        if self.code >= 0:
            return f"exit code {self.code}"
        return f"{_signal_name(-self.code)} (signal {-self.code})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a signal"


def first_cause(endings: Sequence[Ending]) -> Ending:
    """The rank to name, of endings one of which at least failed.

    The earliest that failed of itself. Where all who failed are victims: the rank that left
    before them with exit code 0, else the earliest victim.
    """
    failed = sorted((e for e in endings if e.failed), key=lambda e: e.time)
    culprits = [e for e in failed if not e.victim]
    if culprits:
        return culprits[0]
    left = sorted((e for e in endings if not e.failed), key=lambda e: e.time)
    return left[0] if left and left[0].time <= failed[0].time else failed[0]


def describe(cause: Ending, seconds: float, others: Sequence[int]) -> str:
    """The last message. seconds: since the start; others: ranks that had to be ended."""
    ended = f" Ended with it: {_ranks(others)}." if others else ""
    if not cause.failed:
        return (
            f"Rank {cause.rank} left with exit code 0 after {seconds:.1f} s, while others still "
            f"trained.{ended} Every rank must run the same steps to the same end."
        )
    verb = "was killed by" if cause.code is not None and cause.code < 0 else "failed with"
    head = f"Rank {cause.rank} {verb} {cause.how} after {seconds:.1f} s.{ended}"
    return f"{head}\n{_indent(cause.text)}" if cause.text.strip() else head


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}"


def _indent(text: str, lines: int = 40) -> str:
    kept = text.rstrip().splitlines()
    cut = ["..."] if len(kept) > lines else []
    return "\n".join(f"  {line}" for line in cut + kept[-lines:])
