"""Whom the others wait for over a whole job. Now and then each rank sees whether it stands still in
a call that waits for ranks, and else what part of training it is in; one that stands still seldom,
while the others do often, is waited for, in the part that it is in more often than they are.

What is not seen so is not told: who waits for a GPU runs, and ranks that are late by turns are
late alike.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import final

from dream.stall import stacks
from dream.stall.activity import call_in, called_frame, longest_wait, trained_frame
from dream.stall.phases import WORDS, Phase, phase_of
from dream.stall.status import RankStatus

NOTABLE = 0.2
"""Share of the time above which a wait is worth a line."""
_FEW = 20
"""Looks: fewer say nothing."""
_TASKS = "/proc/self/task"


@final
@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that the others have waited for, time and again.

    share: of the time, for which the others stood still more than it. phase: in which it was
    more often than they, the most of all; None where nothing is known of that.
    """

    rank: int
    share: float
    phase: Phase | None = None

    def told(self, seconds: float, *, over: bool) -> str:
        """Put it into words. seconds: since the job began. over: whether it has ended."""
        phase = f", while it was {WORDS[self.phase]}" if self.phase is not None else ""
        return (
            f"rank {self.rank} {'was' if over else 'is'} waited for: the others stood still for it "
            f"{self.share:.0%} of the time, {self.share * seconds:.0f} of {seconds:.0f} s{phase}. "
            "`dream profile` says what each part of a step takes"
        )


def find(ranks: Collection[RankStatus]) -> Straggler | None:
    """Find the one rank that the others wait for, for more than a fifth of the time even if chance
    was against it."""
    least = min((one.looked for one in ranks), default=0)
    if len(ranks) < 2 or least < _FEW:
        return None
    shares = {one.rank: one.stood / one.looked for one in ranks}
    late = min(ranks, key=lambda one: shares[one.rank])
    others = [one for one in ranks if one is not late]
    share = sum(shares[one.rank] - shares[late.rank] for one in others) / len(others)
    chance = math.sqrt(sum(part * (1 - part) for part in shares.values()) / least)
    if share - 2 * chance <= NOTABLE:
        return None
    return Straggler(late.rank, share, _phase(late, others))


def _phase(late: RankStatus, others: Collection[RankStatus]) -> Phase | None:
    """Tell in which phase one rank is more often than others are."""

    def more(phase: str) -> float:
        return _share(late, phase) - sum(_share(one, phase) for one in others) / len(others)

    return Phase(max(late.spent, key=more)) if late.spent else None


def _share(one: RankStatus, phase: str) -> float:
    return one.spent.get(phase, 0) / one.looked


def look() -> Phase | None:
    """Return what part of training this process is in at this moment; None where it waits for other
    ranks: it is in a call that may, and none of its threads runs."""
    frame = trained_frame()
    if frame is None:
        return None if longest_wait() is not None else Phase.OWN
    code, called = frame.f_code, called_frame()
    stack, inside = stacks.own(frame), stacks.own(called)
    may = longest_wait() is not None or call_in(code.co_filename, code.co_name)
    still = may and called is None and (longest_wait() is not None or not _computes())
    return None if still else phase_of(stack, called=inside)


def _computes() -> bool:
    """Whether one of this process's threads runs, but for the one that asks."""
    own = str(threading.get_native_id())
    with os.scandir(_TASKS) as tasks:
        return any(_runs(task.path) for task in tasks if task.name != own)


def _runs(task: str) -> bool:
    try:
        with Path(task, "stat").open("rb", buffering=0) as file:
            return file.read(512).rpartition(b")")[2].split()[0] == b"R"
    except (OSError, IndexError):  # it has just ended
        return False
