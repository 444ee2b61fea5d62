"""Why a job of several hosts ended: decided in one place, the same for every host. Pure.

A rank whose peer is gone fails of it, and its launcher says so. Whoever is asked then and says
nothing is what the rank has lost; so a host is named within seconds, though silence alone has to
last for the node timeout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from dream.launch.ending import Ending, find_cause, first_left
from dream.launch.hosts.verdict import Report, Verdict, killed, patience, silent

_CULPRIT_SECONDS = 1.0
"""How long other hosts' reports are waited for where one names a rank that failed of itself."""

_RETURN = 0.5
"""How much of the patience one has to come back in whose connection has closed: by the system of
its host as a rule, since its process is gone."""


@dataclass(slots=True)
class _Host:
    """What is known of one. Times are in seconds of the judge's clock."""

    name: str
    heard: float
    closed: float | None = None
    report: Report | None = None
    done: bool = False

    @property
    def owes(self) -> bool:
        """Whether its ranks still run, as far as it has said."""
        return self.report is None and not self.done


@final
class Judge:
    """Hears of hosts and of time. hosts: their names for messages, by node."""

    def __init__(self, hosts: Mapping[int, str], node_timeout: float, now: float) -> None:
        self._hosts = {node: _Host(name, now) for node, name in hosts.items()}
        self._timeout = node_timeout
        self._patience = patience(node_timeout)
        self._return = self._patience * _RETURN
        self._asked: float | None = None
        self._first = Report()

    @property
    def asking(self) -> bool:
        """Whether every host is to report, since one has told of a failure."""
        return self._asked is not None

    @property
    def all_done(self) -> bool:
        """Whether the ranks of every host have ended well."""
        return all(host.done for host in self._hosts.values())

    @property
    def left(self) -> Ending | None:
        """The first rank that has left, of hosts where all have."""
        return first_left([e for host in self._hosts.values() if host.done for e in _of(host)])

    def heard(self, node: int, now: float) -> None:
        self._hosts[node].heard, self._hosts[node].closed = now, None

    def closed(self, node: int, now: float) -> None:
        """Its connection has ended. It may come back by another."""
        self._hosts[node].closed = now

    def done(self, node: int, report: Report) -> None:
        self._hosts[node].report, self._hosts[node].done = report, True

    def report(self, node: int, report: Report, now: float) -> None:
        """Of a fault there, or what there is to say to the question."""
        self._hosts[node].report = report
        if self._asked is None and report.fault:
            self._asked, self._first = now, report

    def verdict(self, now: float) -> Verdict | None:
        """None while the job runs, and while hosts may still tell more."""
        if self._asked is None:
            return self._lost_by_itself(now)
        if self._first.told:
            return Verdict(lost=self._first.told, stopped=self._first.stopped)
        return self._of_reports(self._asked, now)

    def _lost_by_itself(self, now: float) -> Verdict | None:
        for host in self._hosts.values():
            if host.done:
                continue
            if host.closed is not None and now - host.closed > self._return:
                return Verdict(lost=killed(host.name))
            if now - host.heard > self._timeout:
                return Verdict(lost=silent(host.name, now - host.heard))
        return None

    def _of_reports(self, asked: float, now: float) -> Verdict | None:
        owing = [host for host in self._hosts.values() if host.owes]
        before = [h.closed for h in owing if h.closed is not None and h.closed <= asked]
        if before and now - min(before) <= self._return:
            return None  # gone before any rank failed: what these ranks failed of, if it stays so
        if before:
            return next(Verdict(lost=killed(h.name)) for h in owing if h.closed == min(before))
        cause = find_cause([ending for host in self._hosts.values() for ending in _of(host)])
        clear = cause is not None and not cause.first.victim and cause.first.failed
        there = [host for host in owing if now - host.heard <= self._patience]
        if there and now - asked <= (_CULPRIT_SECONDS if clear else self._patience):
            return None
        if clear:
            return Verdict(cause)
        return self._missing(owing, asked, now) or self._told_later() or Verdict(cause)

    def _missing(self, owing: list[_Host], asked: float, now: float) -> Verdict | None:
        for host in owing:
            if host.closed is not None:
                return Verdict(lost=killed(host.name))
            if host.heard <= asked or now - host.heard > self._patience:
                return Verdict(lost=silent(host.name, now - host.heard))
        return None

    def _told_later(self) -> Verdict | None:
        for host in self._hosts.values():
            if host.report is not None and host.report.told:
                return Verdict(lost=host.report.told, stopped=host.report.stopped)
        return None


def _of(host: _Host) -> tuple[Ending, ...]:
    return () if host.report is None else host.report.endings
