"""The report of a script: what is told of its steps, and scripts that take very few of them."""

import json
import re
from dataclasses import replace

import pytest
from compare_made import MIRRORED, SINGLE, finished
from rich.console import Console

from dream.tools.compare import document, page, report
from dream.tools.compare.cells import Cell
from dream.tools.compare.judge import between_frameworks, judge
from dream.tools.compare.machine import Machine
from dream.tools.compare.settings import Job, Settings

pytest.importorskip("matplotlib", reason="the pictures need matplotlib")
pytest.importorskip("jinja2", reason="the page needs jinja2")

SCRIPT = Settings(Job(1, 64), {}, 60, 2, ("script", "train.py"))


def recorded(cell, **given):
    """What a script's cell leaves, in two rounds of speeds unless others are given."""
    made = finished(cell, score=None, **({"speeds": (900.0,)} | given))
    untold = {"feeding_seconds": None, "reducing_seconds": None}
    return replace(made, records=tuple(replace(each, **untold) for each in made.records))


def written(tmp_path, *cells):
    rows = judge(cells)
    figures = document.build(rows, SCRIPT, Machine(2, 0.0))
    return rows, page.write(tmp_path, figures).read_text()


def test_the_words_are_a_scripts(tmp_path):
    _, text = written(tmp_path, *((cell, recorded(cell)) for cell in (SINGLE, MIRRORED)))
    for words in (
        "Steps a second: the dot", "the training loss of every step", "of the last step",
        "not read apart in a script", "the whole step",
    ):  # fmt: skip
        assert words in text, words
    for words in ("Samples a second", "of every epoch", "over the last epoch", ">communication<"):
        assert words not in text, words


def test_columns_that_no_row_has_are_not_there(tmp_path):
    """A script tells no test score, and is not served by workers that run alone."""
    _, text = written(tmp_path, *((cell, recorded(cell)) for cell in (SINGLE, MIRRORED)))
    head, _, body = text.partition("<thead>")[2].partition("</thead>")
    names = re.findall(r">([^<>]+)</button>", head)
    assert {"framework", "verdict", "steps/s", "final loss"} <= set(names)
    assert not {"test score", "s to score", "staleness", "speed kept"} & set(names)
    rows = body.partition("</tbody>")[0].split("<tr>")[1:]
    assert len(rows) == 2
    assert all(row.count("<td") == len(names) for row in rows)
    for index in range(len(names)):
        assert any(re.findall(r"<td[^>]*>([^<]*)", row)[index] for row in rows), names[index]


def test_too_few_steps_for_a_speed_are_no_speed(tmp_path, capsys):
    """A script of two steps: the first is the warm-up, and after the second nothing is left."""
    nothing = float("nan")
    cells = [
        (cell, recorded(cell, speed=nothing, speeds=(nothing,))) for cell in (SINGLE, MIRRORED)
    ]
    rows, text = written(tmp_path, *cells)
    report.show(rows, SCRIPT, Machine(2, 0.0), Console(width=200))
    shown = capsys.readouterr().out
    assert "Fastest: no row to tell of." in shown
    assert "nan" not in shown
    assert "nan" not in json.dumps(json.loads((tmp_path / "figures.json").read_text()))
    assert 'id="throughput"' not in text
    assert 'id="scaling"' not in text
    assert 'id="split"' in text


def test_an_epoch_that_is_one_batch_has_no_speed():
    """All of its samples were the warm-up's."""

    def short(cell):
        made = finished(cell)
        return replace(
            made, records=tuple(replace(each, window=(5.0, 6.0, 0)) for each in made.records)
        )

    rows = judge([(cell, short(cell)) for cell in (SINGLE, MIRRORED)])
    assert all(row.verdict.good for row in rows)
    assert all(row.outcome.speed.median != row.outcome.speed.median for row in rows)


def test_frameworks_in_which_a_script_takes_other_numbers_of_steps(tmp_path):
    other = Cell("tensorflow", "single", 1)
    cells = [(SINGLE, recorded(SINGLE)), (other, recorded(other, losses=(1.5, 1.0, 0.5)))]
    rows, _ = written(tmp_path, *cells)
    assert between_frameworks(rows) is None
