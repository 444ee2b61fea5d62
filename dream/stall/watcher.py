"""The thread of a rank that looks where it stands, says who is waited for, and ends a wait that
nothing else can end."""

from __future__ import annotations

import atexit
import math
import os
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
from dream.stall import marks, stacks, telling
from dream.stall.notice import Notice
from dream.stall.others import Others
from dream.stall.posture import Observer, Posture, trained_frame
from dream.stall.standing import Standing
from dream.stall.verdict import Verdict, judge, speaker

_WARNING_SECONDS = 60.0
_LONGEST_LOOK = 2.0
_LONGEST_STEP = 15.0
_MARGIN = 4
"""Looks by which a wait that can end by itself, with an exception, comes before an end from
here."""

_LEAVE_SECONDS = 5.0
"""How long the interpreter may take to end, once this rank has given up: the ending of a ring waits
for all of its ranks."""

_watchers: list[Watcher] = []


def watch(place: Cluster) -> None:
    """Have this process's waits watched, once, where it is one of several ranks."""
    if not place.alone and place.rendezvous is not None and hasattr(os, "memfd_create"):
        _watch(place)


@cache
def _watch(place: Cluster) -> None:
    cluster.rendezvous(place)  # where this process serves the store, not from two threads at once
    _watchers.append(Watcher(place, cluster.stall_seconds()))
    threading.Thread(target=_watchers[-1].run, name="dream-stall", daemon=True).start()


def give_up(ranks: Sequence[int]) -> list[str]:
    """This rank is about to raise that ranks did not come: what is known of them, in words. The
    others are told, so that they do not take it for one that they wait for; and this process ends
    though a framework's own ending should wait for the same ranks. Nothing where none are
    watched."""
    return [words for watcher in _watchers[:1] for words in watcher.give_up(ranks)]


def overdue(call: str, seconds: float) -> Desynchronized:
    """The error of a wait that has lasted the stall time, and does not know whom it is for."""
    for watcher in _watchers[:1]:
        verdict = watcher.verdict()
        watcher.give_up([])
        if verdict is not None:
            return telling.stuck(verdict, watcher.standings, seconds)
    return telling.absence(call, [], ["nothing from some ranks"], seconds)


@final
class Watcher:
    """limit: the stall time."""

    def __init__(self, place: Cluster, limit: float) -> None:
        self.rank, self._limit = place.rank, limit
        self._warning = min(_WARNING_SECONDS, limit / 2)
        self._look = min(_LONGEST_LOOK, self._warning / 8)
        self._observer, self._writer = Observer(), stacks.Writer()
        self._notice = Notice(place.rank, self._writer.fd)
        self._others = Others(place, self._notice, 1.0 + 4 * self._look)
        self._own = Standing(place.rank)
        self._mark: Hashable = None
        self._next_line = self._next_post = self._next_say = 0.0
        self._said: tuple[int, ...] = ()
        self._gave_up = False
        self._ends = math.inf
        self.standings: dict[int, Standing] = {}

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
        return [telling.whereabouts(self.closely(rank)) for rank in others]

    def _leave(self) -> None:
        """The interpreter ends, of an error most likely."""
        if self._gave_up:
            self._ends = time.monotonic() + _LEAVE_SECONDS

    def _tell(self) -> None:
        self._own = replace(self._own, gave_up=self._gave_up)
        self._notice.write(self._own, self._writer.number)

    def standing(self, rank: int) -> Standing:
        return self._own if rank == self.rank else self._others.standing(rank)

    def closely(self, rank: int) -> Standing:
        """With its stack, where it can be had."""
        if rank == self.rank:
            return replace(self._own, stack=tuple(stacks.own(trained_frame())))
        standing = self.standing(rank)
        return replace(standing, stack=tuple(self._others.stack(rank)) or standing.stack)

    def verdict(self) -> Verdict | None:
        """Who waits for whom, of all ranks, now."""
        ranks = sorted([self.rank, *self._others.ranks])
        self.standings = {rank: self.standing(rank) for rank in ranks}
        return judge(self.standings.values())

    def _step(self, seconds: float) -> None:
        self._own = self._moved_on(self._observer.look(seconds), seconds)
        self._tell()
        self._others.meet()
        still = max(self._own.waited, self._own.quiet)
        if still < self._warning / 2:
            self._others.post(None)
            self._next_line = self._next_post = self._next_say = 0.0
            return
        self._others.look()
        if self._others.posts and still >= self._next_post:
            self._next_post = still + self._warning / 2
            self._others.post(replace(self._own, stack=tuple(stacks.own(trained_frame()))))
        if self._own.waited > self._limit + _MARGIN * self._look:
            self._end()
        elif still >= max(self._warning, self._next_say):
            self._next_say = still + self._warning / 4
            if self._speaks():
                self._say()

    def _moved_on(self, posture: Posture, seconds: float) -> Standing:
        before, steps = self._own, marks.way.steps
        same = posture.mark is not None and posture.mark == self._mark
        if steps != before.steps or (posture.mark is not None and not same):
            self._gave_up = False  # the script has gone on after all
        self._mark = posture.mark
        return replace(
            before,
            steps=steps,
            call=posture.call,
            ranks=posture.ranks,
            waited=before.waited + seconds if same else 0.0,
            quiet=before.quiet + seconds if steps == before.steps else 0.0,
        )

    def _speaks(self) -> bool:
        """Whether none of the ranks before this one can."""
        return not any(
            self.standing(rank).answers for rank in self._others.ranks if rank < self.rank
        )

    def _say(self) -> None:
        verdict = self.verdict()
        if verdict is None:
            self._said = ()
        if verdict is None or speaker(self.standings.values()) != self.rank:
            return
        if verdict.culprits != self._said:
            self._said, self._next_line = verdict.culprits, 0.0
        if max(self._warning, self._next_line) <= verdict.seconds < self._limit:
            self._next_line = 2 * verdict.seconds
            self._look_closely(verdict)
            logger.warning("%s", telling.line(verdict, self.standings, self._limit))

    def _end(self) -> None:
        """Nobody else does: the thread that waits is in a framework's core."""
        verdict = self.verdict()
        if verdict is None:
            return
        self._look_closely(verdict)
        self.give_up([])
        error = telling.stuck(verdict, self.standings, self._limit)
        with suppress(Exception):
            sys.stdout.flush()
        said = f"{type(error).__module__}.{type(error).__name__}: {error}"
        lines = [said, *telling.stacks_of(verdict, self.standings)]
        print("\n".join(lines), file=sys.stderr, flush=True)
        os._exit(1)

    def _look_closely(self, verdict: Verdict) -> None:
        """Have the stacks of those that it is about."""
        for rank in verdict.culprits or verdict.waiting:
            self.standings[rank] = self.closely(rank)
