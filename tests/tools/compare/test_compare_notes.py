"""What several rounds tell, and what they do not."""

import pytest
from compare_made import MIRRORED, SINGLE, finished
from rich.console import Console

from dream.tools.compare import main, notes
from dream.tools.compare.cells import Cell
from dream.tools.compare.judge import RowVerdict, judge
from dream.tools.compare.main import run_in_turns
from dream.tools.compare.outcome import Skipped, best, spread, together
from dream.tools.machine import LoadWatch, Machine
from dream.tools.verify.runs import Broken

QUIET = Machine(cores=2, load=0.1, others=0.0)
FOUR = Cell("torch", "mirrored", 4)


def test_spreads_that_touch_overlap():
    fast, slow, apart = spread([10, 12, 11]), spread([8, 10, 9]), spread([7, 8, 9.9])
    assert (fast.low, fast.median, fast.high) == (10, 11, 12)
    assert fast.overlaps(slow)
    assert slow.overlaps(fast)
    assert not fast.overlaps(apart)


def test_a_single_round_tells_nothing_apart():
    assert spread([1.0]).overlaps(spread([100.0, 101.0]))


def test_the_best_and_those_beside_it():
    found = {"a": spread([8, 9, 10]), "b": spread([9.5, 11, 12]), "c": spread([1, 2, 3])}
    assert best(found, found.__getitem__, most=True) == ("b", ["a"])
    assert best(found, found.__getitem__, most=False) == ("c", [])
    assert best([], found.__getitem__, most=True) is None


def rows(*cells):
    return judge(cells)


def test_the_fastest_is_named_where_the_rounds_tell():
    made = rows(
        (SINGLE, finished(SINGLE, speed=900, speeds=(1000, 1100))),
        (MIRRORED, finished(MIRRORED, speed=2000, speeds=(2100, 1900))),
    )
    assert (
        notes.fastest(made, QUIET, "samples/s") == "Fastest: torch mirrored x 2, 2,000 samples/s."
    )


def test_no_ranking_where_rounds_overlap():
    made = rows(
        (SINGLE, finished(SINGLE, speed=900, speeds=(1950, 1100))),
        (MIRRORED, finished(MIRRORED, speed=2000, speeds=(2100, 1900))),
    )
    said = notes.fastest(made, QUIET, "samples/s")
    assert "torch mirrored x 2, torch single x 1, not told apart by 3 rounds" in said
    assert made[1].apart is False


def test_more_replicas_than_cores_are_never_the_fastest():
    made = rows(
        (SINGLE, finished(SINGLE, speed=900, speeds=(1000, 1100))),
        (FOUR, finished(FOUR, speed=9000, speeds=(9100, 9200))),
    )
    assert "torch single x 1" in notes.fastest(made, QUIET, "samples/s")
    assert "mirrored x 4" in notes.fastest(made, Machine(4, 0.1), "samples/s")


def test_a_row_that_is_wrong_is_never_the_fastest():
    made = rows(
        (SINGLE, finished(SINGLE, speed=900, speeds=(1000, 1100))),
        (MIRRORED, finished(MIRRORED, speed=5000, speeds=(5100, 5200), shift=1e-3)),
    )
    assert "torch single x 1" in notes.fastest(made, QUIET, "samples/s")
    assert "torch mirrored x 2 (DIFFERS)" in notes.differs(made)


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (Machine(2, 3.0), "load 3.0 before the first row"),
        (Machine(2, 0.5, 0.9), "other programs took 0.9 of 2 cores"),
    ],
)
def test_a_busy_machine_is_told_with_the_answer(machine, words):
    assert words in notes.fastest(rows((SINGLE, finished(SINGLE))), machine, "samples/s")
    assert not QUIET.busy


def test_the_machine_is_watched():
    seen = LoadWatch().seen()
    assert seen.cores >= 1
    assert seen.others is None or seen.others >= 0


def test_the_least_memory_is_beyond_the_import():
    made = rows(
        (SINGLE, finished(SINGLE, speeds=(1, 1), own_megabytes=50)),
        (MIRRORED, finished(MIRRORED, speeds=(1, 1), own_megabytes=60)),
    )
    assert "torch single x 1, 50.0 MB" in notes.thriftiest(made)


def test_every_round_is_held_to_the_law():
    outcome = together([finished(MIRRORED), finished(MIRRORED, shift=1e-3)])
    judged = judge([(SINGLE, finished(SINGLE)), (MIRRORED, outcome)])[1]
    assert judged.verdict is RowVerdict.DIFFERS
    assert judged.reason.startswith("In round 2: ")
    assert judged.difference == pytest.approx(1e-3, rel=1e-3)


def test_a_row_that_fails_in_a_later_round_has_failed():
    outcome = together([finished(MIRRORED), Broken("boom")])
    assert outcome == Broken("In round 2: boom")


def test_a_strategy_that_refuses_is_no_crash():
    said = (
        "Rank 0 failed.\n  Traceback (most recent call last):\n"
        "  dream._errors.Unsupported: No pipeline here. Use mirrored."
    )
    judged = judge([(SINGLE, finished(SINGLE)), (MIRRORED, Broken(said))])[1]
    assert (judged.verdict, judged.reason) == (
        RowVerdict.REFUSED,
        "No pipeline here. Use mirrored.",
    )


def test_what_cannot_be_is_told_in_its_own_words():
    said = (
        "Rank 0 failed.\n  Traceback (most recent call last):\n"
        "  dream._errors.ConfigurationError: The mesh does not fit. Give -n 3."
    )
    judged = judge([(SINGLE, finished(SINGLE)), (MIRRORED, Broken(said))])[1]
    assert (judged.verdict, judged.reason) == (
        RowVerdict.IMPOSSIBLE, "The mesh does not fit. Give -n 3.",
    )  # fmt: skip
    assert not judged.verdict.good


def test_rows_take_turns_there_and_back_and_what_failed_is_not_run_again(capsys):
    order = []

    def run(cell):
        order.append(cell)
        return Broken("boom") if cell == FOUR else finished(cell)

    done = dict(run_in_turns([SINGLE, FOUR, MIRRORED], run, Console(stderr=True), 3))
    assert order == [SINGLE, FOUR, MIRRORED, MIRRORED, SINGLE, SINGLE, MIRRORED]
    assert len(done[SINGLE].rounds) == len(done[MIRRORED].rounds) == 3
    assert done[FOUR] == Broken("boom")
    assert "[1/9] torch single x 1" in capsys.readouterr().err


@pytest.mark.parametrize(("within", "rounds"), [(10, 1), (19, 1), (20, 2), (30, 3)])
def test_a_round_that_would_not_end_in_time_is_not_begun(within, rounds, monkeypatch, capsys):
    clock = iter(range(0, 10**4, 5))  # a cell takes five seconds
    told = [0]
    monkeypatch.setattr(main, "monotonic", lambda: told[0])

    def run(cell):
        told[0] = next(clock) + 5
        return finished(cell)

    done = dict(run_in_turns([SINGLE, MIRRORED], run, Console(stderr=True), 3, within))
    assert {len(outcome.rounds) for outcome in done.values()} == {rounds}
    assert (f"Ended after {rounds} of 3 rounds" in capsys.readouterr().err) == (rounds < 3)


def test_what_is_skipped_stays_skipped():
    assert together([Skipped("none here", "x")]) == Skipped("none here", "x")
