"""Faults, and what the job must do: end in time, name the rank, leave nothing."""

from __future__ import annotations

import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle, islice, product
from pathlib import Path

from chaos_jobs import KINDS, READY_SECONDS, STALL_SECONDS, Job, started

from dream.launch.forks.forked import SERVER

SIGNALS = {
    "KILL": signal.SIGKILL,
    "TERM": signal.SIGTERM,
    "SEGV": signal.SIGSEGV,
    "STOP": signal.SIGSTOP,
    "INT": signal.SIGINT,
}
FAULTS = (*SIGNALS, "raise", "leave", "launcher")
"""Signals to a rank; an error while a thread goes on; exit code 0 before the others' end; SIGKILL
to the launcher."""

PROMISED = 5.0
"""Seconds from a fault to the end of every process; a stopped rank's count from the stall time."""

_MOST_SECONDS_BEFORE = 1.5


@dataclass(frozen=True)
class Verdict:
    """What became of one fault. seconds: until no process was left, None where some was; named:
    the rank that the launcher's last message blames."""

    kind: str
    fault: str
    rank: int | None
    seconds: float | None
    named: int | None
    files: tuple[str, ...]
    errors: str

    @property
    def in_time(self) -> bool:
        limit = PROMISED + (STALL_SECONDS if self.fault == "STOP" else 0.0)
        return self.seconds is not None and self.seconds <= limit

    @property
    def good(self) -> bool:
        """It ended, the right rank is named, nothing is left. How soon is told apart."""
        return self.seconds is not None and self.named == self.rank and not self.files

    def __str__(self) -> str:
        took = "NEVER" if self.seconds is None else f"{self.seconds:.1f} s"
        return (
            f"{self.kind} {self.fault} of rank {self.rank}: {took}, named {self.named}, "
            f"files {list(self.files)}"
        )


def fire(name: str, fault: str, seed: int, temporary: Path | None = None) -> Verdict:
    """One job, one fault at a moment that the seed draws. temporary: as a `Job` has it. A launcher
    that is killed has a fork server of its own, which must not be left either."""
    kind = KINDS[name]
    draw = random.Random(f"{name} {fault} {seed}")
    rank = draw.randrange(kind.ranks) if fault in SIGNALS else draw.choice(kind.workers)
    own = {SERVER: ""} if fault == "launcher" else {}
    with started(kind, temporary, **own) as job:
        time.sleep(draw.uniform(0, _MOST_SECONDS_BEFORE))
        begin = time.monotonic()
        _inject(job, fault, rank)
        if rank in kind.workers and _survives(job, fault):
            return _gone_on(job, name, fault, rank)
        seconds = job.seconds_until_all_is_over(begin)
        if fault == "launcher":  # nobody is there to name it
            return Verdict(name, fault, None, seconds, None, tuple(job.files), job.errors)
        blamed = _blamed(job.errors)
        return Verdict(name, fault, rank, seconds, blamed, tuple(job.files), job.errors)


def _inject(job: Job, fault: str, rank: int) -> None:
    if fault == "launcher":
        job.launcher.kill()
    elif fault in SIGNALS:
        job.signal(rank, SIGNALS[fault])
    else:
        job.order(rank, fault)


def _survives(job: Job, fault: str) -> bool:
    """Whether servers and the other workers are to go on without the one."""
    return bool(job.kind.servers) and fault in ("KILL", "TERM", "SEGV", "STOP", "leave")


def _gone_on(job: Job, name: str, fault: str, rank: int) -> Verdict:
    """The others train on, and the loss is told of; the job is then ended from outside."""
    job.wait_until_it_trains(ranks=[other for other in job.kind.workers if other != rank])
    limit = time.monotonic() + READY_SECONDS
    while _lost(job.errors) is None and fault != "leave" and time.monotonic() < limit:
        time.sleep(0.02)
    told = rank if fault == "leave" else _lost(job.errors)
    if fault in ("KILL", "TERM", "SEGV"):  # it is started again, and comes back
        job.wait_until_it_trains()
    begin = time.monotonic()
    job.launcher.terminate()
    seconds = job.seconds_until_all_is_over(begin)
    return Verdict(name, fault, rank, seconds, told, tuple(job.files), job.errors)


def _lost(errors: str) -> int | None:
    """The worker that the launcher or the server says is lost."""
    found = re.search(r"^dream run: Worker (\d+) |worker of rank (\d+) is lost", errors, re.M)
    return int(found[1] or found[2]) if found else None


def _blamed(errors: str) -> int | None:
    """The rank that the launcher's last message names."""
    found = re.search(r"^dream run: Rank (\d+) ", errors, re.MULTILINE)
    return int(found[1]) if found else None


def drawn(count: int) -> Iterable[tuple[str, str, int]]:
    """So many cells: every kind with every fault, again with further moments."""
    pairs = list(product(KINDS, FAULTS))
    return ((kind, fault, n // len(pairs)) for n, (kind, fault) in
            enumerate(islice(cycle(pairs), count)))  # fmt: skip


def table(verdicts: Iterable[Verdict]) -> str:
    """A line a fault: how many, how many well, how many of them in time."""
    found = list(verdicts)
    rows = Counter((v.fault, v.good, v.in_time) for v in found)
    lines = [f"{'fault':10}{'tried':>7}{'well':>7}{'in time':>9}"]
    for fault in FAULTS:
        counts = {key: n for key, n in rows.items() if key[0] == fault}
        tried = sum(counts.values())
        well = sum(n for (_, good, _), n in counts.items() if good)
        soon = sum(n for (_, good, soon), n in counts.items() if good and soon)
        lines.append(f"{fault:10}{tried:7}{well:7}{soon:9}")
    return "\n".join(lines)
