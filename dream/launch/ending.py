"""How a rank and a job ended, whose end came first, and that in words. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dream._errors import listed
from dream.cluster.settings import GO_ON_LATER

EARLY = (
    "It may have stopped on its own loss: branch on a global value "
    "(`strategy.communicator.all_reduce`)."
)
"""Why a rank most often leaves before the others."""

_BLAMES = re.compile(
    r"(?:Desynchronized|WorkerFailed): (?:The server of rank|Ranks?) (\d+)[-, \d]* "
    r"(did not come.*?|is gone.*?)\. Received: (.*?)\. (?:Make|Match|Look|See)"
)
"""What `stall`, `collectives.board` and the servers' `door` say of a rank that is waited for."""

_SECONDS_APART = 1.0
"""A peer's connection closes before the launcher hears of its end: ends so close have no order."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known of a rank's end.

    code: its exit code, minus the signal's number if a signal ended it; while it still runs, 0
        if its script came to its end, None if an error did.
    time: when it failed, by its own report, else when it ended; seconds since the epoch.
    victim: it failed as ranks do whose peer is gone.
    text: its traceback, else the end of what it wrote to stderr.
    raised: it ended by an error of Python's. step: the training step that it was in then.
    wrote: the end of what it wrote to stderr, where `sys.exit` ended it without a text: argparse
        has written one there.
    absent: it has not ended, as far as is known, and others have failed waiting for it: why, in
        their words.
    """

    rank: int
    code: int | None
    time: float
    victim: bool = False
    text: str = ""
    raised: bool = False
    step: int = 0
    absent: str = ""
    wrote: str = ""

    @property
    def failed(self) -> bool:
        return self.code not in (0, GO_ON_LATER)

    def repeats(self, before: Ending) -> bool:
        """Whether a rank raised what it or another had raised before, at the same step."""
        return (
            self.raised
            and before.raised
            and self.step == before.step
            and _last_line(self.text) == _last_line(before.text)
        )

    @property
    def how(self) -> str:
        """ "failed with exit code 3" or "was killed by SIGKILL (signal 9)"."""
        if self.absent:
            return self.absent
        if self.code is None:
            return "raised an error"
        if self.code < 0:
            hint = ", as the system does when memory runs out" if self.code == -9 else ""
            return f"was killed by {_signal_name(-self.code)} (signal {-self.code}{hint})"
        return f"failed with exit code {self.code}"


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a signal"


@dataclass(frozen=True, slots=True)
class Blame:
    """The rank to name, and where it did not fail itself, a rank that failed of it."""

    first: Ending
    victim: Ending | None = None


def find_cause(endings: Sequence[Ending], stopped: Collection[int] = ()) -> Blame | None:
    """Find whom to name; None where nobody failed.

    The earliest that failed of itself. Where all who failed are victims: the rank that left
    before them with exit code 0, else the one that the earliest of them waited for, else one that
    is stopped, else the earliest itself. stopped: ranks whose process is.
    """
    failed = sorted((e for e in endings if e.failed), key=lambda e: e.time)
    culprits = [e for e in failed if not e.victim and not _BLAMES.search(e.text)]
    if culprits:
        return Blame(culprits[0])
    if not failed:
        return None
    left = first_left(endings)
    if left is not None and left.time < failed[0].time + _SECONDS_APART:
        return Blame(left, failed[0])
    absent = _absent(failed[0], endings) or _stopped(failed[0], stopped)
    return Blame(failed[0]) if absent is None else Blame(absent, failed[0])


def _absent(failed: Ending, endings: Sequence[Ending]) -> Ending | None:
    """Find whom a rank waited for in vain, by its own last words, where that has not ended."""
    found = _BLAMES.findall(failed.text)
    if not found:
        return None
    rank, what, known = found[-1]
    if any(ending.rank == int(rank) for ending in endings):
        return None
    return Ending(int(rank), None, failed.time, victim=True, absent=f"{what}: {known}")


def _stopped(failed: Ending, stopped: Collection[int]) -> Ending | None:
    """Find the rank that another failed of without knowing: libraries' own waits name nobody."""
    why = "is stopped, by SIGSTOP, a terminal or a debugger"
    return Ending(min(stopped), None, failed.time, victim=True, absent=why) if stopped else None


def first_left(endings: Sequence[Ending]) -> Ending | None:
    """Return the rank that was the first to end with exit code 0."""
    return min((e for e in endings if not e.failed), key=lambda e: e.time, default=None)


def describe(
    cause: Blame, seconds: float, ended: Sequence[int], shown: Collection[int] = ()
) -> str:
    """Return the last message. seconds: since the start; ended: ranks that had to be ended with it;
    shown: ranks whose own last words are on screen, and not quoted again."""
    first, victim = cause.first, cause.victim
    others = f" Ended with it: {listed(ended)}." if ended else ""
    if first.absent and victim is not None:
        head = f"Rank {first.rank} {first.how}. Rank {victim.rank} waited for it, and "
        return f"{head}{victim.how} after {seconds:.1f} s.{others}{_quoted(victim, shown)}"
    if first.failed:
        head = f"Rank {first.rank} {first.how} after {seconds:.1f} s.{others}"
        return head + _quoted(first, shown)
    head = f"Rank {first.rank} left with exit code 0 while others still trained. {EARLY}"
    if victim is None:
        return (
            f"{head} They have neither computed nor printed for DREAM_STALL_SECONDS since."
            f"{others} Every rank must run to the same end."
        )
    return f"{head}{others} Rank {victim.rank} then {victim.how}.{_quoted(victim, shown)}"


def _quoted(ending: Ending, shown: Collection[int], lines: int = 40) -> str:
    kept = (ending.text or ending.wrote).rstrip().splitlines()
    if kept and ending.rank in shown:
        return " Its last words are above."
    cut = ["..."] if len(kept) > lines else []
    return "".join(f"\n  {line}" for line in cut + kept[-lines:])


SAVED = "Every rank has saved and left. Start the job again to go on."


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended on this host.

    seconds: since its ranks started.
    cause: the rank to name; None where no rank's failure ended the job.
    ended: ranks of this host that had to be ended.
    stopped: the signal that ended the job.
    lost: what else ended it: a time limit, another host.
    grace: whether ranks may save what they have, since the job was stopped on another host.
    changes: whether it goes on at once, with other hosts.
    shown: ranks whose last words are on this host's screen.
    saved: whether every rank of this host saved and left, having been asked to.
    """

    seconds: float
    cause: Blame | None = None
    ended: tuple[int, ...] = ()
    stopped: signal.Signals | None = None
    lost: str = ""
    grace: bool = False
    changes: bool = False
    shown: frozenset[int] = frozenset()
    saved: bool = False

    @property
    def exit_code(self) -> int:
        if self.saved:
            return GO_ON_LATER
        if self.stopped is not None:
            return 128 + self.stopped
        if self.cause is not None:
            code = self.cause.first.code or 1
            return code if code > 0 else 128 - code
        return 1 if self.lost else 0


def explain(outcome: Outcome, shown: Collection[int] = ()) -> str:
    """Return the last message; empty where all ended well. shown: ranks that are not quoted."""
    if outcome.changes:
        return f"{outcome.lost[:1].upper()}{outcome.lost[1:]}: the ranks save what they have."
    if outcome.saved:
        return SAVED
    if outcome.stopped is not None:
        return f"Stopped by {outcome.stopped.name}. {_ended(outcome)}"
    if outcome.cause is not None:
        return describe(outcome.cause, outcome.seconds, outcome.ended, shown)
    return f"Ended because {outcome.lost}. {_ended(outcome)}" if outcome.lost else ""


def _ended(outcome: Outcome) -> str:
    return f"Ended with it: {listed(outcome.ended)}." if outcome.ended else "No rank was left."
