"""Rows whose replicas do not wait for one another, and rows with a slow worker: what is told of
them, and what real ones show."""

import json
import math
from dataclasses import replace

import pytest
import typer
from compare_made import MIRRORED, SINGLE, finished
from rich.console import Console
from typer.testing import CliRunner

from dream import ConfigurationError
from dream.parameter_server.staleness import Staleness
from dream.tools.compare import cells, document, notes, report, settings
from dream.tools.compare.cells import Cell
from dream.tools.compare.command import command
from dream.tools.compare.judge import judge
from dream.tools.compare.settings import Settings, Slow, TaskJob
from dream.tools.machine import Machine

SLOW = Slow(1, 4.0)
SETTINGS = Settings(TaskJob(epochs=2, batch_size=64), {}, 60, slow=SLOW)
SERVED = Cell("torch", "parameter_server", 3, servers=1)
STALE = Staleness({0: 30, 1: 10, 4: 2}, {0: 30, 1: 12}, 18, 0, 0, 0)


def rows(score=0.9375):
    return judge(
        [
            (SINGLE, finished(SINGLE, speed=1000)),
            (MIRRORED, finished(MIRRORED, speed=800)),
            (SERVED, finished(SERVED, speed=900, staleness=STALE, score=score)),
            (replace(MIRRORED, slow=SLOW), finished(MIRRORED, speed=200)),
            (replace(SERVED, slow=SLOW), finished(SERVED, speed=540, staleness=STALE, score=0.5)),
        ]
    )


def test_how_much_of_its_speed_a_row_keeps():
    assert [row.kept for row in rows()] == [None, None, None, 0.25, pytest.approx(0.6)]
    said = notes.answers(rows(), Machine(2, 0.5))
    assert said["slow"] == (
        "With rank 1 slowed 4x: those whose workers wait for one another keep 25% of their speed; "
        "those whose workers do not keep 60% of their speed."
    )
    assert "slowed" not in said["fastest"] + said["memory"]
    assert "slow" not in notes.answers(rows()[:3], Machine(2, 0.5))


def test_seconds_until_a_row_is_as_good():
    found = [row.seconds.median for row in rows()]
    assert found == [0.5, 0.5, 0.5, 0.5, math.inf]
    late = [row.seconds.median for row in rows(score=0.9374 - 0.01)]
    assert late[2] == math.inf
    near = [row.seconds.median for row in rows(score=0.9376 - 0.01)]
    assert near[2] == 0.5
    soonest = notes.answers(rows(), Machine(2, 0.5))["soonest"]
    assert "not told by a single round" in soonest


def test_the_soonest_is_named_and_those_that_never_came():
    timed = [
        (SINGLE, finished(SINGLE, speeds=(1000,))),
        (SERVED, finished(SERVED, score=0.5, speeds=(900,))),
    ]
    said = notes.answers(judge(timed), Machine(3, 0.5))["soonest"]
    assert said == (
        "Soonest as good as single is at its end: torch single x 1, 0.50 s. 1 did not come so far."
    )


def test_columns_are_there_where_a_row_has_them():
    def headers(made):
        (whole,) = report.tables(made, Console(width=400))
        return {str(column.header) for column in whole.columns}

    wanted = {"seconds\nto score", "staleness\nmean, max", "speed kept\nwhen slowed"}
    assert wanted <= headers(rows())
    assert headers(rows()[:2]) & wanted == {"seconds\nto score"}
    assert {"against\nsingle", "largest\ndifference"} <= headers(rows())
    assert not {"against\nsingle", "reduction"} & headers(rows()[:1])
    assert report.staleness(rows()[2].outcome) == "0.4, 4"
    assert report.seconds_to_score(rows()[4]) == "not reached"


def test_the_document_tells_all_of_it():
    figures = document.build(rows(), SETTINGS, Machine(2, 0.5))
    *_, served, held, free = figures["cells"]
    assert (served["staleness"]["mean"], served["staleness"]["max"]) == (18 / 42, 4)
    assert served["seconds_to_score"] == 0.5
    assert held["slow"] == {"rank": 1, "factor": 4.0}
    assert (held["speed_kept"], held["waits_for_all"]) == (0.25, True)
    assert (free["score_reached"], free["seconds_to_score"]) == (False, None)
    assert free["waits_for_all"] is False
    assert figures["score_aimed_at"] == {"torch": 0.9375 - 0.01}
    words = notes.alone(rows(), SETTINGS)
    for word in ("Seconds to score", "Staleness", "by the clock of the whole job", "3 times"):
        assert word in words


def test_the_speed_is_that_of_all_ranks_together():
    made = finished(SERVED)
    early, late, other = made.records
    together = replace(
        made,
        records=(
            replace(early, window=(5.0, 7.0, 1200)),
            replace(late, window=(4.0, 8.0, 1200)),
            other,
        ),
    )
    assert together.rate == 300


def test_rows_with_a_slow_worker_are_those_of_several_processes():
    made = cells.grid(["torch"], ["mirrored", "data_parallel", "parameter_server"], 2)
    again = cells.slowed([*made, *cells.mixed_cells(["torch"], 2)], SLOW)
    assert [(cell.name, cell.title) for cell in again] == [
        ("mirrored", "mirrored, rank 1 slowed 4x"),
        ("parameter_server", "parameter_server, rank 1 slowed 4x"),
    ]
    with pytest.raises(ConfigurationError, match="No row has this worker"):
        cells.slowed(made, Slow(2, 4.0))


@pytest.mark.parametrize("text", ["1", "one:4", "1:", "-1:4", "1:1", "1:0.5", "1:inf", "1:nan"])
def test_what_names_no_slow_worker_is_refused(text):
    with pytest.raises(ConfigurationError, match=r"Pass --slow RANK:FACTOR"):
        Slow.of(text)


def test_a_script_has_no_slow_worker():
    with pytest.raises(ConfigurationError, match="--slow 1:4"):
        settings.script_asked(["train.py"], slow="1:4")


@pytest.mark.slow
def test_rows_with_a_slow_worker_train_as_the_others(tmp_path):
    app = typer.Typer()
    app.command()(command)
    file = tmp_path / "out.json"
    result = CliRunner().invoke(
        app,
        [
            "--frameworks", "torch", "--strategies", "mirrored,parameter_server", "--rounds", "1",
            "--epochs", "3", "--slow", "1:8", "--json", str(file),
        ],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    told = {(c["strategy"], bool(c["slow"])): c for c in json.loads(file.read_text())["cells"]}
    held, free = told["mirrored", True], told["parameter_server", True]
    assert held["verdict"] == "equal"
    for slowed in (held, free):
        usual = told[slowed["strategy"], False]["samples_per_second"]
        assert slowed["speed_kept"] == pytest.approx(slowed["samples_per_second"] / usual)
    assert (held["waits_for_all"], free["waits_for_all"]) == (True, False)
    assert free["staleness"]["updates"] == 3 * 23
    assert sum(free["staleness"]["by_worker"].values()) == 3 * 23
    assert len(free["test_scores"]) == len(free["epoch_seconds"]) == 3
    assert told["single", False]["score_reached"]
