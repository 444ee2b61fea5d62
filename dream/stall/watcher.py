"""The thread of a rank that looks where it stands, says who is waited for, and ends a wait that
nothing else can end."""

from __future__ import annotations

import atexit
import math
import os
import shlex
import sys
import threading
import time
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import final

from dream import cluster
from dream._errors import Desynchronized
from dream._log import logger
from dream._topology import Cluster
from dream.stall import job_progress, phases, stacks, stragglers
from dream.stall.activity import (
    Activity,
    SampleRate,
    ThreadObserver,
    called_frame,
    progress,
    trained_frame,
)
from dream.stall.page import StatusPage
from dream.stall.peers import SeenPeers
from dream.stall.status import (
    RankStatus,
    Standstill,
    absence,
    find_standstill,
    none_can_go_on,
    speaker,
    stack_lines,
    stuck,
    warning,
    whereabouts,
)

_WARNING_SECONDS = 60.0
_APART_SECONDS, _APART_OF_LIMIT = 90.0, 0.05
"""How long all ranks wait in different calls before that is an error, at least, and of the limit:
nothing that any of them does can end it; and a slow network has its limit raised."""
_LONGEST_LOOK = 2.0
_LONGEST_STEP = 15.0
_MARGIN = 4
"""Looks by which a wait that can end by itself, with an exception, comes before an end from
here."""

_COMPARED = 10
"""Looks between two comparisons of all ranks."""

_LEAVE_SECONDS = 5.0
"""How long the interpreter may take to end, once this rank has given up: the ending of a ring waits
for all of its ranks."""

_watchers: list[Watcher] = []


def watch(place: Cluster) -> None:
    """Have this process's waits watched, once, where it is one of several ranks; of the only rank
    of `dream run`, that others see where it is."""
    watched = cluster.started_by_dream() if place.alone else place.rendezvous is not None
    if watched and hasattr(os, "memfd_create"):
        _watch(place)


def begun() -> bool:
    """Whether this process's waits are watched: it is in the job by then."""
    return bool(_watchers)


@cache
def _watch(place: Cluster) -> None:
    if not place.alone:
        cluster.rendezvous(place)  # where this process serves it, not from two threads at once
    _watchers.append(watcher := Watcher(place, cluster.stall_seconds()))
    threading.Thread(target=watcher.run, name="dream-stall", daemon=True).start()
    if place.rank == 0:
        job_progress.tell(lambda: replace(watcher.status(0), steps=progress.steps))


def give_up(ranks: Sequence[int]) -> list[str]:
    """This rank is about to raise that ranks did not come: what is known of them, in words. The
    others are told, so that they do not take it for one that they wait for; and this process ends
    though a framework's own ending should wait for the same ranks. Nothing where none are
    watched."""
    return [words for watcher in _watchers[:1] for words in watcher.give_up(ranks)]


def gone(rank: int) -> bool:
    """Whether the process of another rank is known to have ended: of one on this host."""
    return any(watcher.sees_gone(rank) for watcher in _watchers)


def overdue(call: str, seconds: float) -> Desynchronized:
    """Make the error of a wait that has lasted the stall time, without knowing for whom."""
    for watcher in _watchers[:1]:
        wait = watcher.standstill()
        watcher.give_up([])
        if wait is not None:
            return stuck(wait, watcher.ranks, seconds)
    return absence(call, [], ["nothing from some ranks"], seconds)


@final
class Watcher:
    """A thread that looks whether ranks stand still, and tells who is waited for.

    limit: the stall time.
    """

    def __init__(self, place: Cluster, limit: float) -> None:
        self.rank, self._limit = place.rank, limit
        self._warning = min(_WARNING_SECONDS, limit / 2)
        self._apart = max(_APART_SECONDS, _APART_OF_LIMIT * limit)
        self._look = min(_LONGEST_LOOK, self._warning / 8)
        self._alone = place.alone
        self._observer, self._pace, self._writer = (
            ThreadObserver(),
            SampleRate(),
            stacks.StackWriter(),
        )
        self._page = StatusPage(self._writer.fd)
        self._peers = SeenPeers(place, self._page, 1.0 + 4 * self._look)
        self._own = RankStatus(place.rank)
        self._facts = {
            "rank": place.rank,
            "world_size": place.world_size,
            "job": str(place.rendezvous),
            "script": shlex.join(sys.argv),
            "look": self._look,
            "libraries": phases.libraries(),
        }
        self._introduced = 0
        self._began = time.monotonic()
        self._waited_for: stragglers.Straggler | None = None
        self._mark: Hashable = None
        self._next_line = self._next_post = self._next_say = 0.0
        self._said: tuple[int, ...] = ()
        self._gave_up = False
        self._ends = math.inf
        self.ranks: dict[int, RankStatus] = {}
        self._tell()  # it may be held in C before its first look

        if self.rank == 0 and not place.alone:
            atexit.register(self._sum_up)

    def run(self) -> None:
        """For as long as the process lives."""
        looked = time.monotonic()
        busy = 0.0
        while True:
            time.sleep(self._look)
            now = time.monotonic()
            if now > self._ends:
                os._exit(1)
            # a process that was stopped has not waited meanwhile; one whose store is slow has
            self._step(min(now - looked, 2 * self._look) + busy)
            looked = time.monotonic()
            busy = min(looked - now, _LONGEST_STEP)

    def give_up(self, ranks: Sequence[int]) -> list[str]:
        """See the function of this name."""
        if not self._gave_up:
            self._gave_up = True
            self._tell()
            atexit.register(self._leave)
        others = [rank for rank in ranks if rank != self.rank]
        return [whereabouts(self.closely(rank)) for rank in others]

    def _leave(self) -> None:
        """The interpreter ends, of an error most likely."""
        if self._gave_up:
            self._ends = time.monotonic() + _LEAVE_SECONDS

    def _tell(self) -> None:
        self._own = replace(self._own, gave_up=self._gave_up)
        self._page.write(self._own, self._writer.number)
        rules = phases.declared()
        if len(rules) != self._introduced:  # a framework has been imported since
            self._introduced = len(rules)
            self._page.introduce({**self._facts, "phases": phases.packed(rules)})

    def status(self, rank: int) -> RankStatus:
        return self._own if rank == self.rank else self._peers.status(rank)

    def sees_gone(self, rank: int) -> bool:
        return self._peers.gone(rank)

    def closely(self, rank: int) -> RankStatus:
        """With its stack, where it can be had."""
        if rank == self.rank:
            return self._own_closely()
        status = self.status(rank)
        stack = self._peers.stack(rank)
        return status.seen(stack) if stack else status

    def _own_closely(self) -> RankStatus:
        return self._own.seen(stacks.own(trained_frame()))

    def standstill(self) -> Standstill | None:
        """Find who waits for whom, of all ranks, now."""
        ranks = sorted([self.rank, *self._peers.ranks])
        self.ranks = {rank: self.status(rank) for rank in ranks}
        return find_standstill(self.ranks.values())

    def _step(self, seconds: float) -> None:
        self._own = self._moved_on(self._observer.look(seconds), seconds)
        self._tell()
        if self._alone:
            return
        self._peers.meet()
        if self._own.looked % _COMPARED == 0:
            self._compare()
        still = max(self._own.waited, self._own.quiet)
        if still < self._warning / 2:
            self._peers.post(None)
            self._next_line = self._next_post = self._next_say = 0.0
            return
        self._peers.look()
        if self._peers.posts and still >= self._next_post:
            self._next_post = still + self._warning / 2
            self._peers.post(self._own_closely())
        if self._own.waited > self._limit + _MARGIN * self._look and not self._own.patient:
            self._end(self._limit)
        elif self._own.waited >= self._apart and self._stands_apart():
            self._end(self._own.waited)
        elif still >= max(self._warning, self._next_say):
            self._next_say = still + self._warning / 4
            if self._speaks():
                self._say()

    def _moved_on(self, activity: Activity, seconds: float) -> RankStatus:
        before, steps = self._own, progress.steps
        same = activity.mark is not None and activity.mark == self._mark
        if steps != before.steps or (activity.mark is not None and not same):
            self._gave_up = False  # the script has gone on after all
        self._mark = activity.mark
        phase, spent = stragglers.look(), before.spent
        if phase is not None:
            spent = {**spent, phase: spent.get(phase, 0) + 1}
        return replace(
            before,
            steps=steps,
            call=activity.call,
            called=stacks.shortened(stacks.own(called_frame())),
            ranks=activity.ranks,
            patient=activity.patient,
            waited=before.waited + seconds if same else 0.0,
            quiet=before.quiet + seconds if steps == before.steps else 0.0,
            samples=self._pace.look(time.monotonic()),
            looked=before.looked + 1,
            stood=before.stood + (phase is None),
            spent=spent,
        )

    def _compare(self) -> None:
        """See whom the others wait for, and say so where it is another than before."""
        self._peers.note(self._own)
        if self.rank:
            return
        before, told = self._waited_for, [self._own, *map(self._peers.noted, self._peers.ranks)]
        if any(one.looked == 0 for one in told):
            return  # it has not begun, or has ended before this one
        found = stragglers.find(told)
        if found is not None and (before is None or before.rank != found.rank):
            logger.warning("%s", found.told(time.monotonic() - self._began, over=False))
        self._waited_for = found

    def _sum_up(self) -> None:
        if self._waited_for is not None:
            logger.warning("%s", self._waited_for.told(time.monotonic() - self._began, over=True))

    def _speaks(self) -> bool:
        """Whether none of the ranks before this one can."""
        return not any(self.status(rank).answers for rank in self._peers.ranks if rank < self.rank)

    def _say(self) -> None:
        wait = self.standstill()
        if wait is None:
            self._said = ()
        if wait is None or speaker(self.ranks.values()) != self.rank:
            return
        if wait.culprits != self._said:
            self._said, self._next_line = wait.culprits, 0.0
        if max(self._warning, self._next_line) <= wait.seconds < self._limit:
            self._next_line = 2 * wait.seconds
            self._look_closely(wait)
            apart = none_can_go_on(self.ranks.values(), 0.0)
            limit = self._apart if apart else self._limit
            logger.warning("%s", warning(wait, self.ranks, limit))

    def _stands_apart(self) -> bool:
        """Whether all ranks wait for each other, in calls that are not the same."""
        ranks = [self._own, *map(self._peers.status, self._peers.ranks)]
        return none_can_go_on(ranks, self._apart - 2 * self._look)

    def _end(self, seconds: float) -> None:
        """Nobody else does: the thread that waits is in a framework's core."""
        wait = self.standstill()
        if wait is None:
            return
        self._look_closely(wait)
        self.give_up([])
        error = stuck(wait, self.ranks, seconds)
        with suppress(Exception):
            sys.stdout.flush()
        said = f"{type(error).__module__}.{type(error).__name__}: {error}"
        lines = [said, *stack_lines(wait, self.ranks)]
        print("\n".join(lines), file=sys.stderr, flush=True)
        os._exit(1)

    def _look_closely(self, wait: Standstill) -> None:
        """Have the stacks of those that it is about."""
        for rank in wait.named:
            self.ranks[rank] = self.closely(rank)
