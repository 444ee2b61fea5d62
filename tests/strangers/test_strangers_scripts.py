"""Scripts that know nothing of dream learn in the block what they learn without it."""

from __future__ import annotations

from pathlib import Path

import pytest
from strangers_job import HERE, Outcome, Plain, judge, run
from strangers_rows import Row, rows

REST = pytest.mark.exhaustive


def _cells() -> list[object]:
    cells: list[object] = []
    for row in rows():
        for strategy, ranks in row.cells():
            short = strategy in row.sample and ranks in (row.ranks[0], 1)
            name = f"{row.framework}-{row.script}-{strategy}-{ranks}"
            marks = [pytest.mark.slow] if short else [pytest.mark.slow, REST]
            cells.append(pytest.param(row, strategy, ranks, id=name, marks=marks))
    return cells


@pytest.fixture(scope="module")
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """Those of all chosen rows are run at once."""
    found = Plain(tmp_path_factory.mktemp("plain"))
    chosen = [getattr(item, "callspec", None) for item in request.session.items]
    given = [call.params["row"] for call in chosen if call and "row" in call.params]
    found.run(row for row in given if not row.missing)
    return found


@pytest.mark.parametrize(("row", "strategy", "ranks"), _cells())
def test_a_script_learns_what_it_learns_alone(
    row: Row, strategy: str, ranks: int, plain: Plain, tmp_path: Path
) -> None:
    if row.missing:
        pytest.skip(f"{', '.join(row.missing)} is not installed")
    fault = judge(row, strategy, run(row, strategy, ranks, plain, tmp_path))
    assert not fault, f"{row.script} under {strategy} on {ranks} ranks: {fault}"


def test_every_script_has_a_row_and_knows_nothing_of_dream() -> None:
    files = {file for kind in ("torch", "keras") for file in (HERE / kind).glob("*.py")}
    named = {HERE / row.framework.partition("-")[0] / f"{row.script}.py" for row in rows()}
    assert files == named
    for file in files:
        assert "dream" not in file.read_text(), file.name


NAMED = Row("x", expect="divides by cannot be told", reason="it couples")


@pytest.mark.parametrize(
    ("outcome", "right"),
    [
        (Outcome(True, "dream: what Topk divides by cannot be told.", 0.1, 0.0), True),
        (Outcome(True, "it prints that what it divides by cannot be told", 0.1, 0.0), False),
        (Outcome(True, "UserWarning: what it divides by cannot be told", 0.1, 0.0), False),
        (Outcome(False, "dream.Unsupported: what Topk divides by cannot be told"), True),
        (Outcome(False, "ValueError: too few"), False),
        (Outcome(True, "", 0.0, 0.0), True),
        (Outcome(True, "dream: rows alone", 0.1, 0.0), False),
    ],
)
def test_only_what_dream_says_excuses_a_difference(outcome: Outcome, right: bool) -> None:
    assert (judge(NAMED, "mirrored", outcome) == "") is right


def test_words_on_logs_excuse_no_parameters() -> None:
    row = Row("x", logs="is of this rank's rows alone", reason="the loop adds up")
    said = "dream: what it adds up is of this rank's rows alone"
    assert not judge(row, "mirrored", Outcome(True, said, 0.0, 0.5))
    assert judge(row, "mirrored", Outcome(True, said, 0.5, 0.5))
    assert judge(row, "mirrored", Outcome(True, "is of this rank's rows alone", 0.0, 0.5))


def test_words_that_may_stand_anywhere_are_refused() -> None:
    with pytest.raises(AssertionError, match="may stand anywhere"):
        Row("x", expect="queue", reason="it queues")
