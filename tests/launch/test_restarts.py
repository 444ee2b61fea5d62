from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dream._errors import ConfigurationError
from dream.checkpoint import CheckpointContent, CheckpointFolder
from dream.launch import command, restarts
from dream.launch.ending import Blame, Ending, Outcome
from dream.launch.job import Job
from dream.launch.restarts import Restarts, goes_on_from, grows


def raised(step: int, last: str, rank: int = 1) -> Outcome:
    text = f"Traceback (most recent call last):\n  somewhere\n{last}\n"
    return Outcome(9.0, Blame(Ending(rank, 1, 5.0, text=text, raised=True, step=step)))


KILLED = Outcome(9.0, Blame(Ending(1, -9, 5.0)))


@pytest.mark.parametrize(
    ("first", "second", "again"),
    [
        (raised(7, "ValueError: x"), raised(7, "ValueError: x", rank=0), False),
        (raised(7, "ValueError: x"), raised(8, "ValueError: x"), True),
        (raised(7, "ValueError: x"), raised(7, "OSError: x"), True),
        (KILLED, KILLED, True),
        (raised(7, "ValueError: x"), Outcome(9.0), False),
        (KILLED, Outcome(9.0, lost="node 1 is gone"), True),
        (KILLED, Outcome(9.0, lost="node 1 was stopped by SIGTERM", grace=True), False),
    ],
)
def test_what_comes_back_at_the_same_step_ends_the_job(
    first: Outcome, second: Outcome, again: bool
) -> None:
    them = Restarts()
    assert them.may_follow(first)
    assert them.may_follow(second) is again


def test_it_waits_longer_each_time_that_a_job_fails_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(restarts.time, "sleep", waits.append)
    them = Restarts()
    for seconds in (5, 5, 5, 5, 600, 5, 5):
        them.wait(Outcome(float(seconds)))
    assert waits == [1.0, 2.0, 4.0, 1.0]


def test_ranks_that_were_lost_are_tried_again() -> None:
    """At once with one fewer where they are lost again, and later each time."""
    job: Job | None = Job(("script", "x"), n=3, min_n=1, max_restarts=1, grow_after=5.0)
    them, told = Restarts(), []
    grown = Outcome(6.0, lost="ranks that were lost are tried again", grace=True, changes=True)
    later = Outcome(99.0, Blame(Ending(1, -9, 5.0)))
    for outcome in (KILLED, KILLED, grown, Outcome(3.0, KILLED.cause), grown, later, later):
        assert job is not None
        job = them.next(job, outcome)
        assert job is not None
        told.append((job.n, job.grow_after))
    assert told == [(3, 5.0), (2, 5.0), (3, 5.0), (2, 10.0), (3, 10.0), (3, 10.0), (2, 10.0)]


def test_it_is_tried_once_something_is_saved(tmp_path: Path) -> None:
    kept = CheckpointFolder(tmp_path)
    job = Job(("script", "x"), n=2, min_n=1, full_n=3, grow_after=5.0, checkpoint=tmp_path)
    assert not grows(job, 9.0)
    kept.save(CheckpointContent(1, {"": {}}))
    assert grows(job, 9.0)
    assert not grows(job, 4.0)
    assert not grows(replace(job, n=3), 9.0)
    place = kept.newest()
    assert place is not None
    os.utime(place, (time.time() - 60, time.time() - 60))  # by a start before
    assert not grows(job, 9.0)


def test_where_a_job_goes_on(tmp_path: Path) -> None:
    job = Job(("script", "x.py"), 1, checkpoint=tmp_path)
    assert "from the beginning: nothing is saved" in goes_on_from(job)
    (tmp_path / "latest").write_text("step-000000007")
    assert goes_on_from(job) == f", from {tmp_path / 'step-000000007'}"
    assert goes_on_from(Job(("script", "x.py"), 1)) == ""


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200)])
def test_times_are_read(text: str, seconds: float, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    job = command.job(["-n", "1", "--checkpoint", "runs", "--every", text, str(script)])
    assert (job.checkpoint, job.every) == (Path("runs"), seconds)


def test_a_time_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.job(["-n", "1", "--every", "soon", "train.py"])
    assert "no time: 'soon'; give 90s, 10m or 2h" in capsys.readouterr().err
    with pytest.raises(ConfigurationError, match="--every must be at least"):
        Job(("script", "x.py"), 1, every=0.0)
