"""Show a running job's ranks: a table, who waits for whom, and each rank's Python stack."""

from __future__ import annotations

import json as json_text
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from dream._errors import ConfigurationError, DreamError, listed
from dream.files import sizes
from dream.stall import status as words
from dream.stall.phases import WORDS
from dream.stall.status import ProcessState, RankStatus, Standstill
from dream.tools.tables import note, screen, table
from dream.tools.where import find
from dream.tools.where.find import RankView, RunningJob

_MOST_LINES = 24
_PAGES = 50
"""A second that a rank waits for the disk for, from which it is said."""


def main(number: int | None, *, json: bool = False) -> int:
    """Show the job of this number; without one, the only job that runs, or a list of several.

    Raises DreamError where no job runs here, ConfigurationError where none has the number.
    """
    found = find.jobs()
    if number is not None:
        found = [_chosen(found, number)]
    if not found:
        raise DreamError(
            "No job of yours runs on this host. Seen are jobs started here by `dream run` or "
            "`dream.launch`, and ranks of other launchers that have entered a block."
        )
    looked = [(job, find.look(job)) for job in found] if json or len(found) == 1 else []
    if json:
        print(json_text.dumps([_document(*each) for each in looked], indent=2))
    elif looked:
        _show(screen(), *looked[0])
    else:
        _list(screen(), found)
    return 0


def _chosen(found: Sequence[RunningJob], number: int) -> RunningJob:
    for job in found:
        if job.answers_to(number):
            return job
    there = ", ".join(str(job.number) for job in found) or "none"
    raise ConfigurationError(
        f"No job of this number runs here. Received: {number}; running are: {there}. Remove the "
        "number for a list."
    )


def _list(console: Console, found: Sequence[RunningJob]) -> None:
    rows = table("job", "ranks here", "since", "script", words=("script",), folded=("script",))
    for job in found:
        rows.add_row(str(job.number), str(len(job.ranks)), _since(job), job.script)
    console.print(rows)
    note(console, "dream where JOB shows one of them.")


def _since(job: RunningJob) -> str:
    if job.start is None:
        return ""
    minutes, seconds = divmod(int(time.time() - job.start), 60)
    return f"{minutes}:{seconds:02}"


def _show(console: Console, job: RunningJob, ranks: Sequence[RankView]) -> None:
    since = _since(job)
    console.print(
        Text(f"job {job.number}: {job.script}" + (f", for {since}" if since else "")),
        soft_wrap=True,
    )
    rows = table("rank", "doing", "step", "samples/s", "memory", words=("doing",),
                 folded=("doing",))  # fmt: skip
    for one in ranks:
        status = one.status
        rows.add_row(
            str(one.rank),
            doing(one),
            "" if status is None else f"{status.steps:,}",
            f"{status.samples:,.0f}" if status is not None and status.samples else "",
            sizes.show(one.resident) if one.resident else "",
        )
    console.print(rows)
    wait = standstill(ranks)
    if wait is not None:
        note(console, _told(wait, ranks, job.world_size), style="bold")
    if len(ranks) < job.world_size:
        note(console, f"These are this host's ranks, {len(ranks)} of {job.world_size}.")
    for line in _stacks(ranks):
        console.print(Text(line), soft_wrap=True)


def _told(wait: Standstill, ranks: Sequence[RankView], size: int) -> str:
    """Say who waits for whom; where all of these wait for one another, in which calls. size: of
    the job, some of whose ranks may be on other hosts."""
    known = [one.status for one in ranks if one.status is not None]
    calls = {one.rank: one.call for one in known}
    if wait.culprits or len({calls[rank] for rank in wait.waiting}) == 1:
        said = words.waits_for(wait)
        if not wait.culprits and len(ranks) < size:
            said += " for a rank of another host, or for what it sends"
        link = words.on_its_way(known, size)
        return f"{said[0].upper()}{said[1:]}.{link and ' '}{link}"
    each = ", ".join(f"rank {rank} in {calls[rank]}" for rank in wait.waiting)
    return f"They wait for one another: {each}."


def doing(one: RankView) -> str:
    """Say what a rank does, and at which line of its script."""
    status = one.status
    if status is None:
        return "has entered no block yet" if one.resident else "has ended"
    at = f", {one.line}" if one.line else ""
    if status.state is not ProcessState.ALIVE:
        return f"{words.STATES[status.state]}{at}"
    if status.call:
        return f"has waited {status.waited:.0f} s in {status.call}{at}"
    return f"{WORDS[status.phase] if status.phase else 'is alive'}{at}{_paging(one)}"


def _paging(one: RankView) -> str:
    if one.read_back < _PAGES:
        return ""
    return f"; reads its memory back from disk (swap?), {one.read_back:,.0f} pages/s"


def standstill(ranks: Sequence[RankView]) -> Standstill | None:
    """Find who waits for whom, of these."""
    return words.find_standstill([one.status for one in ranks if one.status is not None])


def _stacks(ranks: Sequence[RankView]) -> list[str]:
    """Quote each stack once, for all ranks that are in it."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for one in ranks:
        if one.status is not None and one.status.stack:
            alike.setdefault(one.status.stack, []).append(one.rank)
    lines = []
    for stack, which in alike.items():
        lines.append(f"{listed(which)}, innermost call first:")
        lines += [f"  {at}" for at in stack[:_MOST_LINES]]
        lines += ["  ..."] if len(stack) > _MOST_LINES else []
    return lines


def _document(job: RunningJob, ranks: Sequence[RankView]) -> dict[str, Any]:
    wait = standstill(ranks)
    return {
        "job": job.number,
        "script": job.script,
        "world_size": job.world_size,
        "seconds": None if job.start is None else round(time.time() - job.start, 1),
        "waiting": [] if wait is None else list(wait.waiting),
        "waited_for": [] if wait is None else list(wait.culprits),
        "ranks": [_row(one) for one in ranks],
    }


def _row(one: RankView) -> dict[str, Any]:
    status = one.status or RankStatus(one.rank)
    return {
        "rank": one.rank,
        "pid": one.pid,
        "in_block": one.status is not None,
        "state": str(status.state),
        "phase": status.phase,
        "line": one.line,
        "waits_in": status.call,
        "waited_seconds": round(status.waited, 1),
        "step": status.steps,
        "samples_a_second": round(status.samples, 1),
        "resident_bytes": one.resident,
        "pages_read_back_a_second": round(one.read_back, 1),
        "stack": list(status.stack),
    }
