"""Find this user's jobs on this host, and look at their ranks: by memory that launchers and ranks
lay open, by /proc, and by a signal that has a rank write its Python stack."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dream._errors import ConfigurationError
from dream.stall import notice, phases, stacks
from dream.stall.page import FACTS_AT, Neighbour, read_back
from dream.stall.status import ProcessState, RankStatus, text_of

_AT_ONCE = 32
_NAP = 0.05
_SPARE_LOOKS, _SPARE_SECONDS = 4, 1.0
"""By which a rank's page may be old before its interpreter counts as held."""


@dataclass(frozen=True, slots=True)
class FoundRank:
    """A rank that was found on this host.

    facts: of its page; None where it has entered no block yet.
    """

    rank: int
    pid: int
    facts: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that runs on this host.

    number: its launcher's process; of a job of another launcher, its first rank's here. start:
    seconds since 1970, where it is known. ranks: those of this host.
    """

    number: int
    script: str
    world_size: int
    start: float | None
    ranks: tuple[FoundRank, ...]

    def answers_to(self, number: int) -> bool:
        return number == self.number or any(number == rank.pid for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class RankView:
    """What is shown of a rank.

    status: None where the rank has entered no block yet, or ended meanwhile. line: of the
    script's own, as `train.py:31 in load`. resident: bytes of memory; 0 once it has ended.
    read_back: pages of its memory a second that it waits for the disk for.
    """

    rank: int
    pid: int
    status: RankStatus | None
    line: str
    resident: int
    read_back: float = 0.0


def jobs() -> list[RunningJob]:
    """Find the jobs that run, in the order of their numbers. ConfigurationError where the system
    has no such memory."""
    if not hasattr(os, "memfd_create"):
        raise ConfigurationError(
            "The ranks' positions are read from memory files that only Linux has. Received: a "
            "system without memfd_create. Run the job with --all-output, and look there."
        )
    launchers: dict[int, dict[str, Any]] = {}
    ranks: dict[int, dict[str, Any]] = {}
    for pid in _own_processes():
        launchers.update((pid, facts) for facts in _told(pid, notice.JOB, 0))
        ranks.update((pid, facts) for facts in _told(pid, notice.RANK, FACTS_AT))
    found = [_launched(pid, facts, ranks) for pid, facts in launchers.items() if "ranks" in facts]
    known = {rank.pid for job in found for rank in job.ranks}
    others = {pid: facts for pid, facts in ranks.items() if pid not in known}
    return sorted([*found, *_unlaunched(others)], key=lambda job: job.number)


def _own_processes() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and entry.stat().st_uid == os.getuid():
                yield int(entry.name)
        except OSError:
            continue


def _told(pid: int, name: str, at: int) -> Iterator[dict[str, Any]]:
    for fd in notice.opened(pid, name):
        try:
            facts = notice.facts_of(pid, fd, at)
        finally:
            os.close(fd)
        if facts is not None:
            yield facts


def _launched(pid: int, facts: dict[str, Any], pages: dict[int, dict[str, Any]]) -> RunningJob:
    ranks = [FoundRank(rank, one, pages.get(one)) for rank, one in sorted(facts["ranks"])]
    return RunningJob(
        pid, _script(facts["command"]), facts["world_size"], facts["start"], tuple(ranks)
    )


def _script(command: Sequence[str]) -> str:
    kind, name, *rest = command
    if kind == "function":
        return "a function, by dream.launch"
    return " ".join([*(["-m"] if kind == "module" else []), name, *rest])


def _unlaunched(pages: dict[int, dict[str, Any]]) -> Iterator[RunningJob]:
    """Jobs that another launcher started: ranks that have a store in common."""
    groups: dict[str, list[FoundRank]] = defaultdict(list)
    for pid, facts in pages.items():
        groups[facts["job"]].append(FoundRank(facts["rank"], pid, facts))
    for ranks in groups.values():
        ranks.sort(key=lambda one: one.rank)
        first = ranks[0]
        assert first.facts is not None
        yield RunningJob(
            first.pid, first.facts["script"], first.facts["world_size"], None, tuple(ranks)
        )


def look(job: RunningJob) -> list[RankView]:
    """See where each rank is, now. That takes as long as ranks have between two looks at
    themselves: 2 seconds at most."""
    with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(job.ranks)))) as pool:
        return list(pool.map(_view, job.ranks))


def _view(one: FoundRank) -> RankView:
    status, line, read = None, "", 0.0
    near = None if one.facts is None else Neighbour.met(text_of(one.facts))
    if one.facts is not None and near is not None:
        pages, began = read_back(one.pid), time.monotonic()
        try:
            status = _status(one.facts, near)
        finally:
            near.close()
        read = max(0, read_back(one.pid) - pages) / max(time.monotonic() - began, _NAP)
        line = phases.own_line(status.stack, one.facts["libraries"])
    return RankView(one.rank, one.pid, status, line, _resident(one.pid), read)


def _status(facts: dict[str, Any], near: Neighbour) -> RankStatus:
    said, state = _fresh(near, facts["look"]), near.state
    if said is None or not state:
        return RankStatus(facts["rank"], ProcessState.GONE)
    status = RankStatus.unpacked(said)
    if state in "Tt":
        return replace(status, state=ProcessState.STOPPED)
    age = time.monotonic() - said["at"]
    if age > _SPARE_SECONDS + _SPARE_LOOKS * facts["look"]:
        status = replace(status, state=ProcessState.HELD)
    stack = stacks.ask(near.pid, int(said["signal"]), near.stacks)
    return status.seen(stack, phases.unpacked(facts["phases"])) if stack else status


def _fresh(near: Neighbour, look: float) -> dict[str, Any] | None:
    """Return what a rank writes next: what it wrote last may be of a wait that is over."""
    asked = time.monotonic()
    while time.monotonic() < asked + look + _SPARE_SECONDS and near.state not in ("", "T", "t"):
        said = near.read()
        if said is None or said["at"] >= asked:
            return said
        time.sleep(_NAP)
    return near.read()


def _resident(pid: int) -> int:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if len(pages) > 1 else 0
