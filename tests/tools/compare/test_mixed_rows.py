"""Rows whose ranks are of two frameworks: which there are, and what they are held against."""

import json
from pathlib import Path

import pytest
from compare_made import SINGLE, finished

from dream import ConfigurationError
from dream.tools.compare import cells, runner
from dream.tools.compare.cells import KINDS, MIXED, Cell
from dream.tools.compare.judge import RowVerdict, judge
from dream.tools.compare.main import main
from dream.tools.compare.outcome import Finished
from dream.tools.compare.settings import Settings, TaskJob
from dream.tools.frameworks import TASKS

pytestmark = pytest.mark.slow

RING = Cell("torch+tensorflow", "horovod", 2)


def test_a_row_for_each_oracle_that_is_there():
    assert [c.framework for c in cells.mixed_cells(["torch", "keras-torch"], 3)] == list(MIXED)
    assert cells.mixed_cells(["torch", "tensorflow"], 2) == [RING]


@pytest.mark.parametrize(
    ("frameworks", "n", "words"),
    [(["torch"], 1, ("n=1", "-n 2")), (["tensorflow"], 2, ("=tensorflow", "torch, keras-torch"))],
)
def test_what_cannot_be_mixed(frameworks, n, words):
    with pytest.raises(ConfigurationError) as caught:
        cells.mixed_cells(frameworks, n)
    for word in words:
        assert word in str(caught.value)


def test_the_frameworks_are_dealt_out_by_rank():
    assert RING.kind.backends == ("torch", "tensorflow")
    assert (RING.oracle, RING.reduction) == ("torch", "horovod")
    assert all(kind.oracle in KINDS for kind in MIXED.values())


@pytest.mark.parametrize(
    ("shift", "verdict"),
    [(4e-6, RowVerdict.EQUAL), (2e-5, RowVerdict.DIFFERS), (0.0, RowVerdict.EQUAL)],
)
def test_held_against_the_single_of_rank_0(shift, verdict):
    rows = judge([(SINGLE, finished(SINGLE)), (RING, finished(RING, shift=shift))])
    assert rows[1].verdict is verdict
    assert verdict.good or "> 1e-05" in rows[1].reason


def test_ranks_must_end_alike_to_the_bit():
    rows = judge([(SINGLE, finished(SINGLE)), (RING, finished(RING, rank_shift=6e-8))])
    assert rows[1].verdict is RowVerdict.RANKS_DIFFER


def test_each_rank_runs_its_own_sides_task(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("KERAS_BACKEND", "torch")  # the user's own, which cannot fit both
    tasks = {"torch": "compare_tasks:told_torch", "step": "compare_tasks:told_tensorflow"}
    outcome = runner.run(RING, Settings(TaskJob(2, 64), tasks, 300.0), tmp_path)
    assert isinstance(outcome, Finished), outcome
    assert [record.score for record in outcome.records] == [0.25, 0.75]


@pytest.mark.exhaustive
def test_two_frameworks_learn_what_one_learns(tmp_path):
    file = tmp_path / "out.json"
    assert main(2, ["torch"], ["single"], Settings(TaskJob(2, 64), TASKS, 200), file, mixed=True)
    single, ring = json.loads(file.read_text())["cells"]
    assert (single["verdict"], ring["verdict"]) == ("the oracle", "equal")
    assert 0.0 < ring["largest_parameter_difference"] <= ring["largest_allowed"] == 1e-5
