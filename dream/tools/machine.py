"""Measure what speeds depend on: cores, load, and who else wanted the machine meanwhile."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from time import monotonic
from typing import final

from dream.launch.joined.threads import cores

_STAT = Path("/proc/stat")
_IDLE = slice(3, 5)
"""Idle, and waiting for a disk, among a processor's times."""
_SHARE = 0.1
"""Of the cores, taken by others: more is busy."""


@dataclass(frozen=True, slots=True)
class Machine:
    """cores: that we may use; load: processes that wanted one before the first cell started, the
    mean over a minute; others: cores that other programs kept busy while cells ran, the mean;
    None where the system does not tell."""

    cores: int
    load: float
    others: float | None = None

    @property
    def busy(self) -> str:
        """Why the speeds are not to be trusted; empty where they are."""
        if self.load > self.cores / 2:
            return f"load {self.load:.1f} before the first row"
        if self.others is not None and self.others > _SHARE * self.cores:
            return f"other programs took {self.others:.1f} of {self.cores} cores meanwhile"
        return ""

    @property
    def figures(self) -> dict[str, object]:
        """For programs."""
        here = {"system": platform.system(), "arch": platform.machine()}
        return asdict(self) | {"busy": self.busy or None} | here


@final
class LoadWatch:
    """From the moment it is made."""

    def __init__(self) -> None:
        self._before = Machine(cores(), os.getloadavg()[0])
        self._clock, self._busy, self._ours = monotonic(), _busy(), _ours()

    def seen(self) -> Machine:
        """Return the machine, and how busy others kept it until now."""
        busy, seconds = _busy(), monotonic() - self._clock
        if busy is None or self._busy is None or seconds <= 0:
            return self._before
        others = (busy - self._busy - (_ours() - self._ours)) / seconds
        return replace(self._before, others=max(0.0, others))


def _busy() -> float | None:
    """Processor seconds so far, of all programs on this machine. None where there are other
    processors than we may use, on which others may be busy as they like."""
    try:
        lines = _STAT.read_text().splitlines()
    except OSError:
        return None
    if sum(line[3:4].isdigit() for line in lines if line.startswith("cpu")) != cores():
        return None
    ticks = [int(text) for text in lines[0].split()[1:9]]
    return (sum(ticks) - sum(ticks[_IDLE])) / os.sysconf("SC_CLK_TCK")


def _ours() -> float:
    """Processor seconds of this process and of those it has seen end."""
    used = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
