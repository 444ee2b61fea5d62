"""The report's page: of a recorded comparison, and of a script, which may take very few steps."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from compare_made import MIRRORED, SINGLE, finished, recorded_figures
from rich.console import Console

from dream import ConfigurationError, NotInstalled
from dream.tools.compare import document, page, report
from dream.tools.compare.cells import Cell
from dream.tools.compare.judge import between_frameworks, judge
from dream.tools.compare.page import files
from dream.tools.compare.page.pictures import PICTURES
from dream.tools.compare.settings import Settings, TaskJob
from dream.tools.machine import Machine

pytest.importorskip("matplotlib", reason="the pictures need matplotlib")

pytest.importorskip("jinja2", reason="the page needs jinja2")


@pytest.fixture(scope="module")
def figures():
    return recorded_figures()


@pytest.fixture(scope="module")
def folder(figures, tmp_path_factory):
    made = tmp_path_factory.mktemp("report")
    assert page.write(made, figures) == made / "report.html"
    return made


class Read(HTMLParser):
    """What is in a page: tags with their attributes, and the rows of its table."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.rows, self.ids = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append((tag, given))
        self.ids += [given["id"]] if "id" in given else []
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        if self.rows and self.rows[-1] and self.get_starttag_text().startswith(("<td", "<button")):
            self.rows[-1][-1] += data.strip()


@pytest.fixture(scope="module")
def read(folder):
    return Read((folder / "report.html").read_text())


def test_everything_is_written(folder, figures):
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["report.html", "figures.json", *(f"{picture.name}.png" for picture in PICTURES)]
    )
    assert json.loads((folder / "figures.json").read_text()) == figures
    for picture in PICTURES:
        assert (folder / f"{picture.name}.png").read_bytes().startswith(b"\x89PNG")


def test_every_picture_is_in_the_page(read):
    figures = [given["id"] for tag, given in read.tags if tag == "figure"]
    assert figures == [picture.name for picture in PICTURES]
    assert sum(tag == "svg" for tag, _ in read.tags) == len(PICTURES)


def test_nothing_in_it_points_outside(read):
    for tag, given in read.tags:
        assert tag not in ("link", "img", "iframe", "object", "base"), tag
        assert "src" not in given
        for name in ("href", "xlink:href", "action"):
            assert given.get(name, "#").startswith("#"), (tag, given[name])
        assert "url(http" not in given.get("style", "")


def test_each_id_is_there_once(read):
    assert len(read.ids) == len(set(read.ids))


def test_the_policy_lets_nothing_in(read):
    policy = next(g["content"] for t, g in read.tags if t == "meta" and "http-equiv" in g)
    assert policy.startswith("default-src 'none'")


def test_a_row_for_every_cell_with_what_it_sorts_by(read, figures):
    header, *rows = read.rows
    assert header[:4] == ["framework", "strategy", "replicas", "verdict"]
    assert len(rows) == len(figures["cells"])
    assert all(len(row) == len(header) for row in rows)
    for row, cell in zip(rows, figures["cells"], strict=True):
        assert row[:4] == [
            cell["framework"], cell["title"], str(cell["replicas"]), cell["verdict"],
        ]  # fmt: skip
    keys = [given["data-key"] for tag, given in read.tags if tag == "td"]
    assert len(keys) == len(rows) * len(header)


def test_the_answers_and_the_machine_are_told(folder, figures):
    text = (folder / "report.html").read_text()
    (skipped, *_) = (c["reason"] for c in figures["cells"] if c["verdict"] == "skipped")
    assert "rows learned the weights of single" in figures["summary"]["differs"]
    for words in (
        "Which is fastest?", "Which needs least memory?", "Does any row differ?",
        "Which is soonest as good as single?", "Whom does a slow worker hold back?",
        "rank 1 slowed 4x", "updates not seen",
        "correctness only", figures["versions"]["torch"], "prefers-color-scheme: dark",
        skipped.replace("'", "&#39;"),
    ):  # fmt: skip
        assert words in text


def test_text_takes_the_colour_of_the_page(folder):
    text = (folder / "report.html").read_text()
    assert text.count("currentColor") > 100
    assert "#010203" not in text


def test_a_script_with_markup_in_its_name_stays_text(figures, tmp_path):
    page.write(tmp_path, figures | {"title": "<script>alert(1)</script>"})
    assert "<script>alert" not in (tmp_path / "report.html").read_text()


def test_where_nothing_finished_there_is_a_page_without_pictures(figures, tmp_path):
    left = [cell for cell in figures["cells"] if "losses" not in cell]
    page.write(tmp_path, figures | {"cells": left})
    read = Read((tmp_path / "report.html").read_text())
    assert not any(tag == "svg" for tag, _ in read.tags)


def test_a_folder_with_files_in_it_is_refused(tmp_path):
    page.check(tmp_path)
    page.check(tmp_path / "new")
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(ConfigurationError, match=r"has files in it.*Choose one"):
        page.check(tmp_path)
    with pytest.raises(ConfigurationError, match="a file"):
        page.check(tmp_path / "mine.txt")
    with pytest.raises(ConfigurationError, match="A folder cannot be created"):
        page.check(tmp_path / "absent" / "new")


def test_what_is_not_installed_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "find_spec", lambda name: None if name == "jinja2" else object())
    with pytest.raises(NotInstalled, match=r"jinja2.*dream-systems\[report\]"):
        page.check(tmp_path)


pytest.importorskip("matplotlib", reason="the pictures need matplotlib")

pytest.importorskip("jinja2", reason="the page needs jinja2")

SCRIPT = Settings(TaskJob(1, 64), {}, 60, 2, ("script", "train.py"))


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
