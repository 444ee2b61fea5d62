"""Whether ranks that outlived another still do anything."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from dream.launch.process import Process

_BUSY = 0.05
"""Share of a core below which a rank counts as waiting; heartbeats of idle frameworks need
some."""

_LEAST_SECONDS = 0.5


class IdleWatch:
    """Tells for how long processes have neither computed nor printed."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, int]] = {}
        self._checked = self._busy_at = time.monotonic()

    def idle_seconds(self, processes: Sequence[Process]) -> float:
        """Call it every second or so. A process that ended meanwhile counts as activity."""
        now = time.monotonic()
        if now - self._checked < _LEAST_SECONDS and self._seen:
            return now - self._busy_at
        seen = {p.group: (_cpu_seconds(p.group), p.output.lines) for p in processes}
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
    """Of every process in a session; 0 where the system does not tell."""
    ticks = os.sysconf("SC_CLK_TCK")
    return sum(_ticks(file, session) for file in Path("/proc").glob("[0-9]*/stat")) / ticks


def _ticks(file: Path, session: int) -> int:
    try:
        fields = file.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12]) if int(fields[3]) == session else 0
