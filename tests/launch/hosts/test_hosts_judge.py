"""Which host or rank is named, decided on paper: no clock but the test's own."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from dream.cluster import awake
from dream.cluster.awake import AwakeClock
from dream.launch.ending import Ending
from dream.launch.hosts.judge import HostReport, JobVerdict, Judge

OWN = HostReport.of([Ending(1, 1, 10.0, text="ValueError: mine")])
VICTIM = HostReport.of([Ending(0, 1, 9.0, victim=True, text="ConnectionResetError")])
KILLED = HostReport.of([Ending(5, -signal.SIGKILL, 11.0)])
LEFT = HostReport.of([Ending(4, 0, 8.0)])
WELL = HostReport()


def judge(hosts: int = 3) -> Judge:
    """All have been heard at 100."""
    made = Judge({node: f"node {node} (host{node})" for node in range(hosts)}, 15.0, 100.0)
    for node in range(hosts):
        made.heard(node, 100.0)
    return made


def beats(made: Judge, *nodes: int, now: float) -> None:
    for node in nodes:
        made.heard(node, now)


def named(verdict: JobVerdict | None) -> int | str:
    assert verdict is not None
    return verdict.lost or verdict.cause.first.rank if verdict.cause else verdict.lost


def test_silence_alone_lasts_for_the_node_timeout() -> None:
    made = judge()
    beats(made, 0, 2, now=114.9)
    assert made.verdict(114.9) is None
    assert "node 1 (host1) cannot be reached: its launcher has said nothing for 15 s" in str(
        named(made.verdict(115.1))
    )


def test_a_closed_connection_may_come_back() -> None:
    made = judge()
    made.closed(1, 101.0)
    assert made.verdict(102.4) is None
    made.heard(1, 102.4)
    beats(made, 0, 2, now=110.0)
    assert made.verdict(110.0) is None


def test_a_closed_connection_that_does_not_come_back() -> None:
    made = judge()
    made.closed(1, 101.0)
    assert str(named(made.verdict(102.6))).startswith("node 1 (host1) is gone: its launcher was")


def test_a_host_that_is_gone_is_named_and_not_its_victim() -> None:
    made = judge()
    made.closed(1, 101.0)
    made.report(0, VICTIM, 101.3)
    made.report(2, VICTIM, 101.4)
    assert made.verdict(102.4) is None, "it may still come back"
    assert str(named(made.verdict(102.6))).startswith("node 1 (host1) is gone")


def test_a_host_that_comes_back_did_not_cause_it() -> None:
    made = judge()
    made.closed(1, 101.0)
    made.report(0, VICTIM, 101.3)
    made.heard(1, 101.5)
    made.report(1, WELL, 101.6)
    made.report(2, WELL, 101.6)
    assert named(made.verdict(101.6)) == 0


def test_who_says_nothing_when_asked_is_what_the_victim_has_lost() -> None:
    made = judge()
    beats(made, 0, 1, 2, now=101.0)
    made.report(0, VICTIM, 101.5)
    made.report(2, WELL, 102.5)
    beats(made, 0, 2, now=103.9)
    assert made.verdict(103.9) is None
    assert "node 1 (host1) cannot be reached" in str(named(made.verdict(104.1)))


def test_who_was_silent_before_is_not_waited_for() -> None:
    made = judge()
    beats(made, 0, 2, now=104.0)
    made.report(0, VICTIM, 104.0)
    made.report(2, WELL, 104.0)
    assert "node 1 (host1) cannot be reached" in str(named(made.verdict(104.0)))


def test_who_is_only_slow_to_report_is_not_blamed() -> None:
    made = judge()
    made.report(0, VICTIM, 101.5)
    made.report(2, WELL, 102.5)
    beats(made, 0, 1, 2, now=104.5)
    assert named(made.verdict(104.6)) == 0


def test_a_rank_that_failed_of_itself_is_named_before_a_silent_host() -> None:
    made = judge()
    made.report(0, OWN, 101.0)
    made.report(2, VICTIM, 101.5)
    assert made.verdict(101.9) is None
    assert named(made.verdict(102.1)) == 1


def test_a_host_that_was_gone_before_is_named_before_any_rank() -> None:
    """What its peers fail of does not always look like a lost peer."""
    made = judge()
    made.closed(1, 101.0)
    made.report(0, OWN, 101.5)
    assert str(named(made.verdict(103.1))).startswith("node 1 (host1) is gone")


def test_a_host_that_went_after_a_failure_did_not_cause_it() -> None:
    made = judge()
    made.report(0, OWN, 101.0)
    made.closed(1, 101.5)
    assert named(made.verdict(102.1)) == 1


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_the_earliest_cause_of_all_hosts_whatever_the_order(order: tuple[int, ...]) -> None:
    made = judge()
    reports = {0: VICTIM, 1: OWN, 2: KILLED}
    for node in order:
        made.report(node, reports[node], 101.0)
    assert named(made.verdict(101.0)) == 1


def test_what_a_host_tells_is_every_hosts_reason() -> None:
    made = judge()
    made.report(2, HostReport((), "node 2 (host2) was stopped by SIGTERM"), 101.0)
    made.report(0, VICTIM, 101.0)
    assert named(made.verdict(101.0)) == "node 2 (host2) was stopped by SIGTERM"


def test_a_host_whose_ranks_have_ended_well_may_go() -> None:
    made = judge()
    made.done(1, LEFT)
    made.closed(1, 101.0)
    beats(made, 0, 2, now=130.0)
    assert made.verdict(130.0) is None
    assert (made.left, made.all_done) == (LEFT.endings[0], False)
    made.done(0, WELL)
    made.done(2, WELL)
    assert made.all_done


def test_a_report_says_no_more_than_a_cause_is_found_by() -> None:
    endings = [Ending(rank, 1, float(rank), text="x" * 100_000) for rank in range(64)]
    endings += [Ending(rank, 0, float(rank)) for rank in range(64, 128)]
    report = HostReport.of(endings)
    assert [ending.rank for ending in report.endings] == [0, 64]
    assert len(str(report.write())) < 20_000
    assert HostReport.read(report.write()) == report


def test_time_in_which_this_process_stood_still_is_no_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter((100.0, 100.5, 101.5, 701.5, 702.0))
    monkeypatch.setattr(awake, "time", SimpleNamespace(monotonic=lambda: next(times)))
    clock = AwakeClock()
    assert [clock.seconds() for _ in range(4)] == [0.5, 1.5, 3.5, 4.0]
