"""Cells that break a law, crash or hang: real jobs, on tasks that need no framework."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import dream.tools.compare.command
from dream import ConfigurationError
from dream.tools.compare.cells import Cell
from dream.tools.compare.main import main
from dream.tools.compare.outcome import Finished
from dream.tools.compare.runner import run
from dream.tools.compare.settings import Settings, Slow, TaskJob
from dream.tools.verify.runs import Broken

MIRRORED = Cell("torch", "mirrored", 2)


@pytest.fixture(autouse=True)
def _ranks_find_the_tasks(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def settings(task, timeout=300.0, epochs=2, batch_size=64):
    place = f"compare_tasks:{task}"
    return Settings(TaskJob(epochs, batch_size), {"torch": place, "keras": place}, timeout)


def test_a_job_that_finishes(tmp_path):
    outcome = run(MIRRORED, settings("fine"), tmp_path)
    assert isinstance(outcome, Finished)
    assert [record.rank for record in outcome.records] == [0, 1]
    assert outcome.first.losses == [1.0, 0.5]
    assert 0 < outcome.start_up < 300
    assert outcome.peak_bytes > 10**6
    assert 0 < outcome.rate < 640 / 0.01  # a machine may sleep for longer than asked, never less


def test_a_rank_that_leaves_without_a_word(tmp_path):
    outcome = run(MIRRORED, settings("leaves"), tmp_path)
    assert isinstance(outcome, Broken)
    assert not outcome.timed_out


def test_a_job_that_hangs_is_ended(tmp_path):
    outcome = run(MIRRORED, settings("hangs", timeout=3), tmp_path)
    assert isinstance(outcome, Broken)
    assert outcome.timed_out
    assert "3 s" in outcome.reason


def test_the_slow_worker_alone_is_slow(tmp_path):
    slowed = replace(MIRRORED, slow=Slow(1, 8.0))
    outcome = run(slowed, settings("told_how_slow"), tmp_path)
    assert isinstance(outcome, Finished), outcome
    assert [record.score for record in outcome.records] == [1 / 16, 8 / 16]


def test_the_rest_runs_where_one_row_is_broken(tmp_path, capsys):
    file = tmp_path / "out.json"
    good = main(
        2, ["torch"], ["mirrored", "multi_worker_mirrored"], settings("broken_mirrored"), file
    )
    assert not good
    single, mirrored, multi = json.loads(file.read_text())["cells"]
    assert [c["verdict"] for c in (single, mirrored, multi)] == ["the oracle", "CRASHED", "equal"]
    assert "rank one cannot add" in mirrored["reason"]
    shown = capsys.readouterr()
    assert "rank one cannot add" in shown.out
    assert "[3/3] torch multi_worker_mirrored x 2" in shown.err


def test_the_exit_code_is_1_where_a_law_is_broken(monkeypatch):
    tasks = settings("wrong_when_several").tasks
    monkeypatch.setattr("dream.tools.frameworks.TASKS", tasks)
    app = typer.Typer()
    app.command()(dream.tools.compare.command.command)
    result = CliRunner().invoke(
        app, ["--frameworks", "torch", "--strategies", "mirrored", "--rounds", "1"]
    )
    assert result.exit_code == 1
    assert "DIFFERS" in result.output
    assert "3.0e-06 > 1e-06" in result.output


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"batch_size": 1}, "batch_size=1, replicas=2"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": float("nan")}, "timeout=nan"),
    ],
)
def test_what_no_row_could_run_is_refused_before_any_starts(bad, word, capsys):
    with pytest.raises(ConfigurationError, match=word):
        main(2, ["torch"], [], settings("fine", **bad))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ((0, [], []), "n=0"),
        ((10**6, [], []), "would overload this machine"),
        ((2, ["jax"], []), "Unknown framework"),
        ((2, [], ["mirored"]), "mean 'mirrored'"),
        ((2, [], ["mirrored:reduction=gl"]), "Unknown reduction"),
        ((2, [], ["hybrid:data=999,model=999"]), "would overload this machine"),
    ],
)
def test_a_script_is_not_started_for_what_cannot_be(given, word, capsys):
    asked = replace(settings("fine", batch_size=10**7), script=("script", __file__))
    with pytest.raises(ConfigurationError, match=word):
        main(*given, asked)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("folder", ["/proc/report", "absent/report", "a" * 300])
def test_a_report_that_cannot_be_written_is_refused_before_any_starts(folder, capsys):
    with pytest.raises(ConfigurationError, match=r"can(not)? be (written|created) there.*--report"):
        main(2, ["torch"], ["single"], settings("fine"), None, Path(folder))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("file", ["absent/out.json", ".", "/proc/out.json"])
def test_a_file_that_cannot_be_written_is_refused_before_any_starts(tmp_path, file):
    with pytest.raises(ConfigurationError, match="A file cannot be written"):
        main(2, ["torch"], ["single"], settings("fine"), tmp_path / file)


def test_the_figures_and_the_report_go_together(tmp_path, capsys):
    file, folder = tmp_path / "out.json", tmp_path / "report"
    rounds = replace(settings("fine"), rounds=2)
    assert main(2, ["torch"], ["mirrored"], rounds, file, folder)
    assert file.read_text() == (folder / "figures.json").read_text()
    read = json.loads(file.read_text())
    assert [len(cell["samples_per_second_by_round"]) for cell in read["cells"]] == [2, 2]
    assert read["cells"][1]["reducing_seconds"] >= 0
    assert read["cells"][1]["feeding_seconds"] > 0
    assert "<svg" in (folder / "report.html").read_text()
    assert f"The report: {folder / 'report.html'}" in capsys.readouterr().out.replace("\n", "")
    with pytest.raises(ConfigurationError, match="has files in it"):
        main(2, ["torch"], ["mirrored"], rounds, file, folder)


def test_a_strategy_that_refuses_the_task_is_told_apart_from_a_crash(tmp_path):
    file = tmp_path / "out.json"
    assert main(2, ["torch"], ["mirrored"], settings("refused_when_several"), file)
    _, mirrored = json.loads(file.read_text())["cells"]
    assert mirrored["verdict"] == "refused"
    assert mirrored["reason"] == "This model cannot be split. Use mirrored."
