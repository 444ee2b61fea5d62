"""Why a job of several hosts ended: decided in one place, the same for every host. Pure.

A rank whose peer is gone fails of it, and its launcher says so. Whoever is asked then and says
nothing is what the rank has lost; so a host is named within seconds, though silence alone has to
last for the node timeout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, final

from dream.launch.ending import Blame, Ending, find_cause, first_left

_PATIENCE = 5
"""A part of the node timeout: how long a host may say nothing once ranks fail as those do that
lost a peer."""

_LEAST_PATIENCE = 2.0
"""Two beats."""

_LONGEST_TEXT = 16_000
_CULPRIT_SECONDS = 1.0
"""How long other hosts' reports are waited for where one names a rank that failed of itself."""

_RETURN = 0.5
"""How much of the patience one has to come back in whose connection has closed: by the system of
its host as a rule, since its process is gone."""


@dataclass(frozen=True, slots=True)
class HostReport:
    """What a host's launcher knows of the end. told: what ended the job there, where it was no
    rank's failure; stopped: whether that was a signal from outside, or such as gives ranks the
    grace too; changes: whether the others go on at once."""

    endings: tuple[Ending, ...] = ()
    told: str = ""
    stopped: bool = False
    changes: bool = False

    @classmethod
    def of(cls, endings: Sequence[Ending], told: str = "", *, stopped: bool = False) -> HostReport:
        """No more than what a cause is found by: its size does not grow with the ranks."""
        cause, left = find_cause(endings), first_left(endings)
        known = [*((cause.first, cause.victim) if cause else ()), left]
        kept = dict.fromkeys(_short(e) for e in known if e is not None and not e.absent)
        return cls(tuple(kept), told, stopped)

    @classmethod
    def read(cls, content: Any) -> HostReport:
        endings = tuple(Ending(**e) for e in content["endings"])
        stopped, changes = bool(content["stopped"]), bool(content["changes"])
        return cls(endings, str(content["told"]), stopped, changes)

    def write(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def fault(self) -> bool:
        """Whether something has ended the job there, or has to."""
        return bool(self.told) or any(ending.failed for ending in self.endings)


def _short(ending: Ending) -> Ending:
    return replace(ending, text=ending.text[-_LONGEST_TEXT:])


@dataclass(frozen=True, slots=True)
class JobVerdict:
    """How a job of several hosts ended, and who is to be named for it.

    cause: the rank to name; None where `lost` says what else ended the job. stopped: whether a
    signal from outside did, which gives ranks of every host the grace; changes: whether the job
    goes on at once, with other hosts.
    """

    cause: Blame | None = None
    lost: str = ""
    stopped: bool = False
    changes: bool = False

    @classmethod
    def read(cls, content: Any) -> JobVerdict:
        cause = content["cause"]
        if cause is None:
            stopped, changes = bool(content["stopped"]), bool(content["changes"])
            return cls(lost=str(content["lost"]), stopped=stopped, changes=changes)
        victim = cause["victim"]
        return cls(Blame(Ending(**cause["first"]), Ending(**victim) if victim else None))

    def write(self) -> dict[str, Any]:
        return asdict(self)


def patience(node_timeout: float) -> float:
    """Seconds that are enough to hear of a host that is there."""
    return max(node_timeout / _PATIENCE, _LEAST_PATIENCE)


def killed(host: str) -> str:
    return f"{host} is gone: its launcher was killed, or the host went down"


def silent(host: str, seconds: float) -> str:
    return (
        f"{host} cannot be reached: its launcher has said nothing for {seconds:.0f} s. It is "
        "stopped, or the host or the network between is down"
    )


@dataclass(slots=True)
class _Host:
    """What is known of one. Times are in seconds of the judge's clock."""

    name: str
    heard: float
    closed: float | None = None
    report: HostReport | None = None
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
        self._first = HostReport()

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

    def done(self, node: int, report: HostReport) -> None:
        self._hosts[node].report, self._hosts[node].done = report, True

    def report(self, node: int, report: HostReport, now: float) -> None:
        """Take a report: of a fault there, or what there is to say to the question."""
        self._hosts[node].report = report
        if self._asked is None and report.fault:
            self._asked, self._first = now, report

    def verdict(self, now: float) -> JobVerdict | None:
        """None while the job runs, and while hosts may still tell more."""
        if self._asked is None:
            return self._lost_by_itself(now)
        if self._first.told:
            return _as_told(self._first)
        return self._of_reports(self._asked, now)

    def _lost_by_itself(self, now: float) -> JobVerdict | None:
        for host in self._hosts.values():
            if host.done:
                continue
            if host.closed is not None and now - host.closed > self._return:
                return JobVerdict(lost=killed(host.name))
            if now - host.heard > self._timeout:
                return JobVerdict(lost=silent(host.name, now - host.heard))
        return None

    def _of_reports(self, asked: float, now: float) -> JobVerdict | None:
        owing = [host for host in self._hosts.values() if host.owes]
        before = [h.closed for h in owing if h.closed is not None and h.closed <= asked]
        if before and now - min(before) <= self._return:
            return None  # gone before any rank failed: what these ranks failed of, if it stays so
        if before:
            return next(JobVerdict(lost=killed(h.name)) for h in owing if h.closed == min(before))
        cause = find_cause([ending for host in self._hosts.values() for ending in _of(host)])
        clear = cause is not None and not cause.first.victim and cause.first.failed
        there = [host for host in owing if now - host.heard <= self._patience]
        if there and now - asked <= (_CULPRIT_SECONDS if clear else self._patience):
            return None
        if clear:
            return JobVerdict(cause)
        return self._missing(owing, asked, now) or self._told_later() or JobVerdict(cause)

    def _missing(self, owing: list[_Host], asked: float, now: float) -> JobVerdict | None:
        for host in owing:
            if host.closed is not None:
                return JobVerdict(lost=killed(host.name))
            if host.heard <= asked or now - host.heard > self._patience:
                return JobVerdict(lost=silent(host.name, now - host.heard))
        return None

    def _told_later(self) -> JobVerdict | None:
        for host in self._hosts.values():
            if host.report is not None and host.report.told:
                return _as_told(host.report)
        return None


def _as_told(report: HostReport) -> JobVerdict:
    return JobVerdict(lost=report.told, stopped=report.stopped, changes=report.changes)


def _of(host: _Host) -> tuple[Ending, ...]:
    return () if host.report is None else host.report.endings
