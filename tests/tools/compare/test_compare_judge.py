"""The law: what passes, what does not, and what is said of it."""

import math
from dataclasses import replace

import pytest
from compare_made import MIRRORED, SINGLE, finished

from dream.tools.compare.cells import Cell
from dream.tools.compare.judge import RowVerdict, between_frameworks, judge, largest_difference, row
from dream.tools.compare.outcome import Skipped
from dream.tools.verify.runs import Broken

ORACLE = finished(SINGLE)


def test_equal_within_the_limit():
    judged = row(MIRRORED, finished(MIRRORED, shift=4e-7, speed=250.0), ORACLE)
    assert judged.verdict is RowVerdict.EQUAL
    assert judged.difference == pytest.approx(4e-7, rel=0.2)
    assert judged.speed == 0.25
    assert judged.reason == ""


def test_single_is_the_oracle():
    judged = row(SINGLE, ORACLE, ORACLE)
    assert (judged.verdict, judged.difference, judged.speed) == (RowVerdict.ORACLE, 0.0, 1.0)


@pytest.mark.parametrize("shift", [2e-6, -2e-6, math.nan, math.inf])
def test_parameters_that_differ(shift):
    judged = row(MIRRORED, finished(MIRRORED, shift=shift), ORACLE)
    assert judged.verdict is RowVerdict.DIFFERS
    assert "differ from single" in judged.reason
    assert not judged.verdict.good


def test_a_single_that_is_not_finite_is_no_oracle():
    broken = finished(SINGLE, shift=math.nan)
    assert row(SINGLE, broken, broken).verdict is RowVerdict.DIFFERS


def test_ranks_that_differ_by_the_last_bit():
    judged = row(MIRRORED, finished(MIRRORED, rank_shift=6e-8), ORACLE)
    assert judged.verdict is RowVerdict.RANKS_DIFFER
    assert judged.difference == 0.0
    assert "6.0e-08" in judged.reason


def test_other_parameters_than_single_has():
    theirs = dict(ORACLE.parameters[0])
    theirs.pop("bias")
    assert largest_difference(theirs, ORACLE.parameters[0]) == math.inf
    theirs["bias"] = ORACLE.parameters[0]["bias"][:1]
    assert largest_difference(theirs, ORACLE.parameters[0]) == math.inf


@pytest.mark.parametrize(
    "figures",
    [
        {"losses": (1.5, 0.50002)},
        {"losses": (1.5,)},
        {"losses": (math.nan, 0.5)},
        {"score": 0.9},
        {"score": math.nan},
    ],
)
def test_figures_that_are_not_global(figures):
    assert row(MIRRORED, finished(MIRRORED, **figures), ORACLE).verdict is RowVerdict.WRONG_FIGURES


def test_a_figure_that_is_wrong_on_one_rank_only():
    outcome = finished(MIRRORED)
    second = replace(outcome.records[1], losses=[1.5, 0.6])
    judged = row(MIRRORED, replace(outcome, records=(outcome.records[0], second)), ORACLE)
    assert judged.verdict is RowVerdict.WRONG_FIGURES
    assert "Rank 1" in judged.reason


def test_a_job_that_ran_on_fewer_replicas_proves_nothing():
    judged = row(MIRRORED, finished(MIRRORED, replicas=1), ORACLE)
    assert judged.verdict is RowVerdict.WRONG_PLACE
    assert "1 replicas" in judged.reason


def test_broken_and_skipped_cells_keep_their_reason():
    crashed, late, skipped = (
        row(MIRRORED, outcome, ORACLE)
        for outcome in (
            Broken("rank 1: exit 3"),
            Broken("Not done.", timed_out=True),
            Skipped("Horovod is not installed.", "dream build-horovod"),
        )
    )
    assert (crashed.verdict, crashed.reason) == (RowVerdict.CRASHED, "rank 1: exit 3")
    assert late.verdict is RowVerdict.TIMED_OUT
    assert skipped.reason == "Horovod is not installed. Run: dream build-horovod"
    assert [r.verdict.good for r in (crashed, late, skipped)] == [False, False, True]


def test_without_single_nothing_is_proven():
    rows = judge([(SINGLE, Broken("no")), (MIRRORED, finished(MIRRORED))])
    assert [r.verdict for r in rows] == [RowVerdict.CRASHED, RowVerdict.UNPROVEN]
    assert not rows[1].verdict.good


def test_each_framework_has_its_own_single():
    theirs = Cell("tensorflow", "single", 1)
    rows = judge([(SINGLE, ORACLE), (theirs, finished(theirs, shift=0.5))])
    assert [r.verdict for r in rows] == [RowVerdict.ORACLE, RowVerdict.ORACLE]


def test_loss_difference_between_frameworks_is_the_largest_of_any_epoch():
    theirs, third = Cell("tensorflow", "single", 1), Cell("keras-torch", "single", 1)
    cells = [
        (SINGLE, ORACLE),
        (theirs, finished(theirs, losses=(1.5, 0.25))),
        (third, finished(third, losses=(1.75, 0.5))),
    ]
    assert between_frameworks(judge(cells)) == 0.25
    assert between_frameworks(judge(cells[:1])) is None


LOCAL = Cell("torch", "local_sgd", 2)
SERVED = Cell("torch", "parameter_server", 3, servers=1)


@pytest.mark.parametrize("cell", [LOCAL, SERVED])
def test_what_is_not_meant_to_be_equal_is_judged_by_how_it_learns(cell):
    learns = finished(cell, shift=0.3, rank_shift=0.1, losses=(1.6, 0.9))
    judged = row(cell, learns, ORACLE)
    assert (judged.verdict, judged.reason) == (RowVerdict.LEARNS, "")
    assert judged.verdict.good
    assert judged.difference == pytest.approx(0.3, rel=0.01)


@pytest.mark.parametrize("last", [1.1, 1.6, math.nan, math.inf])
def test_a_loss_that_does_not_come_down_half_as_far_is_no_learning(last):
    judged = row(LOCAL, finished(LOCAL, losses=(1.6, last)), ORACLE)
    assert judged.verdict is RowVerdict.LEARNS_NOT
    assert "at least 50% is asked for" in judged.reason


def test_nothing_is_told_by_a_single_that_does_not_learn():
    flat = finished(SINGLE, losses=(0.5, 0.5))
    assert row(LOCAL, finished(LOCAL), flat).verdict is RowVerdict.UNPROVEN


@pytest.mark.parametrize("strategy", ["local_sgd:every=1", "parameter_server:staleness=0"])
def test_with_options_that_make_it_exact_it_must_be_equal(strategy):
    cell = Cell("torch", strategy, 2)
    assert row(cell, finished(cell), ORACLE).verdict is RowVerdict.EQUAL
    assert row(cell, finished(cell, shift=0.3), ORACLE).verdict is RowVerdict.DIFFERS
