"""Whom the others wait for over a whole job. Now and then each rank sees whether it stands still in
a call that waits for ranks; one that does so seldom, while the others do often, is waited for.

What is not seen so is not told: who waits for a GPU runs, and ranks that are late by turns are
late alike.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from dream.stall.activity import call_in, longest_wait, trained_frame

NOTABLE = 0.2
"""Share of the time above which a wait is worth a line."""
_FEW = 20
"""Looks: fewer say nothing."""
_TASKS = "/proc/self/task"


@final
@dataclass(frozen=True, slots=True)
class Straggler:
    """share: of the time, for which the others stood still more than it."""

    rank: int
    share: float

    def told(self, seconds: float, *, over: bool) -> str:
        """Put it into words. seconds: since the job began. over: whether it has ended."""
        return (
            f"rank {self.rank} {'was' if over else 'is'} waited for: the others stood still for it "
            f"{self.share:.0%} of the time, {self.share * seconds:.0f} of {seconds:.0f} s. "
            "`dream profile` says in what part of a step"
        )


def find(looks: Mapping[int, tuple[int, int]]) -> Straggler | None:
    """Find the one rank that the others wait for, for more than a fifth of the time even if chance
    was against it.

    looks: of every rank, how often it looked, and how often it stood still then.
    """
    if len(looks) < 2 or min(looked for looked, _ in looks.values()) < _FEW:
        return None
    shares = {rank: stood / looked for rank, (looked, stood) in looks.items()}
    late = min(shares, key=lambda rank: shares[rank])
    others = [shares[rank] - shares[late] for rank in shares if rank != late]
    share = sum(others) / len(others)
    least = min(looked for looked, _ in looks.values())
    chance = math.sqrt(sum(part * (1 - part) for part in shares.values()) / least)
    return Straggler(late, share) if share - 2 * chance > NOTABLE else None


def stands_still() -> bool:
    """Whether this process waits for other ranks at this moment: it is in a call that may, and none
    of its threads runs."""
    if longest_wait() is not None:
        return True
    frame = trained_frame()
    if frame is None or not call_in(frame.f_code.co_filename, frame.f_code.co_name):
        return False
    own = str(threading.get_native_id())
    with os.scandir(_TASKS) as tasks:
        return not any(_runs(task.path) for task in tasks if task.name != own)


def _runs(task: str) -> bool:
    try:
        with Path(task, "stat").open("rb", buffering=0) as file:
            return file.read(512).rpartition(b")")[2].split()[0] == b"R"
    except (OSError, IndexError):  # it has just ended
        return False
