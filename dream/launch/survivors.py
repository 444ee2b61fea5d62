"""Ranks that outlive another: whether the job can do without it, and whether they still work."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import final

from dream._errors import listed
from dream.launch.ending import EARLY, Ending
from dream.launch.output import SCREEN
from dream.launch.process import Process

RESTARTS = 3
"""How often a rank is started again before it is left dead."""
_BUSY = 0.05
"""Share of a core below which a rank counts as waiting; heartbeats of idle frameworks need
some."""

_LEAST_SECONDS = 0.5
_TOLD_SECONDS = 60.0


@final
class Expendable:
    """Workers of servers that can do without some. find: looks a key up in the job's store."""

    def __init__(self, find: Callable[[str], bytes | None]) -> None:
        self._find = find
        self._restarts: Counter[int] = Counter()
        self._stopped: set[int] = set()
        self.forgiven: set[int] = set()
        """Ranks that died and are not started again; the job goes on without them."""

    def starts_again(self, ending: Ending) -> bool:
        """Whether a rank that has ended is to be started again. Says what becomes of it."""
        if not ending.failed or ending.rank not in self._ranks("roles/workers"):
            return False
        if self.training_is_over():
            if ending.victim or not ending.raised:
                self.forgiven.add(ending.rank)
            return False
        if ending.raised:
            return False  # an error of the script would come again, on this rank and others
        self._restarts[ending.rank] += 1
        if self._restarts[ending.rank] > RESTARTS:
            self.forgiven.add(ending.rank)
            SCREEN.say(
                f"Worker {ending.rank} {ending.how} after {RESTARTS} restarts. It is not restarted "
                "again."
            )
            return False
        SCREEN.say(
            f"Worker {ending.rank} {ending.how}. The others continue; it is being restarted."
        )
        return True

    def tell_of_stopped(self, stopped: Collection[int]) -> None:
        """Say once of each worker that stands still by a signal: the others go on without it, and
        only the servers notice."""
        new = {*stopped} - self._stopped
        for rank in sorted(new & self._ranks("roles/workers")) if new else ():
            SCREEN.say(
                f"Worker {rank} is suspended, by SIGSTOP, a terminal or a debugger. The others "
                "continue."
            )
        self._stopped = {*stopped}

    def training_is_over(self) -> bool:
        return self._ask("roles/lost") is not None

    def given_up(self) -> set[int]:
        """Return, once training is over, the ranks that the servers no longer knew alive."""
        return self._ranks("roles/lost")

    def _ranks(self, key: str) -> set[int]:
        value = self._ask(key) or b""
        return {int(rank) for rank in value.decode().split(",") if rank}

    def _ask(self, key: str) -> bytes | None:
        """A store that is gone says nothing; that it is gone is for others to notice."""
        try:
            return self._find(key)
        except OSError:
            return None


@final
class IdleWatch:
    """Tells for how long processes have neither computed nor printed.

    From outside, one that waits in vain for a rank that left and one that makes a last upload look
    alike. Whoever waits in a call of dream's or of a framework's hears that its peer is gone, and
    fails by itself. So this is for those who wait on sockets and files of the script's own: they
    are told of soon, and given as long as any stall.
    """

    def __init__(self, stall_seconds: float) -> None:
        self._stall_seconds = stall_seconds
        self._told_seconds = min(_TOLD_SECONDS, stall_seconds / 2)
        self._told = False
        self._seen: dict[int, tuple[float, int]] = {}
        self._checked = self._busy_at = time.monotonic()

    def too_long(self, left: Ending, processes: Sequence[Process]) -> bool:
        """Whether ranks that outlived one that left are to be ended. Says so long before."""
        idle = self.idle_seconds(processes)
        if idle >= self._stall_seconds:
            return True
        if idle >= self._told_seconds and not self._told:
            who = listed([process.rank for process in processes])
            SCREEN.say(
                f"Rank {left.rank} left with exit code 0, and for {idle:.0f} s nothing has been "
                f"computed or printed by {who}. If they are waiting for rank {left.rank}, it will "
                f"not come back; after {self._stall_seconds:g} s (DREAM_STALL_SECONDS) the job is "
                f"ended. {EARLY}"
            )
        self._told = idle >= self._told_seconds
        return False

    def idle_seconds(self, processes: Sequence[Process]) -> float:
        """Call it every second or so. A process that ended meanwhile counts as activity."""
        now = time.monotonic()
        if now - self._checked < _LEAST_SECONDS and self._seen:
            return now - self._busy_at
        seen = {p.group: (_cpu_seconds(p.group), p.output.seen) for p in processes}
        if seen.keys() != self._seen.keys() or any(
            self._active(self._seen[group], state, now - self._checked)
            for group, state in seen.items()
        ):
            self._busy_at = now
        self._seen, self._checked = seen, now
        return now - self._busy_at

    @staticmethod
    def _active(before: tuple[float, int], after: tuple[float, int], seconds: float) -> bool:
        return after[1] != before[1] or after[0] - before[0] > _BUSY * seconds


def _cpu_seconds(session: int) -> float:
    """Return what every process of a session has computed; 0 where the system does not tell."""
    ticks = os.sysconf("SC_CLK_TCK")
    return sum(_ticks(file, session) for file in Path("/proc").glob("[0-9]*/stat")) / ticks


def _ticks(file: Path, session: int) -> int:
    try:
        fields = file.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12]) if int(fields[3]) == session else 0
