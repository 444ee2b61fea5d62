"""What is printed and written, from made-up cells."""

import io
import json
import math

import pytest
from compare_made import MIRRORED, SINGLE, finished
from rich.console import Console

from dream.files.whole import write_json
from dream.tools.compare import document, report
from dream.tools.compare.cells import Cell
from dream.tools.compare.judge import judge
from dream.tools.compare.outcome import Skipped
from dream.tools.compare.settings import Settings, TaskJob
from dream.tools.machine import Machine
from dream.tools.tables import screen
from dream.tools.verify.runs import Broken

SETTINGS = Settings(TaskJob(epochs=2, batch_size=64), {}, 60)
OTHER = Cell("tensorflow", "single", 1)
DEVICES = Cell("tensorflow", "mirrored:devices=2", 1, 2)
RING = Cell("tensorflow", "horovod", 2)


def cells():
    return [
        (SINGLE, finished(SINGLE, speed=8000, speeds=(9000, 7900))),
        (MIRRORED, finished(MIRRORED, speed=2000, speeds=(2100, 1900), shift=1e-7)),
        (OTHER, finished(OTHER, losses=(1.5, 0.5000001))),
        (DEVICES, Broken("The job ended with exit code 1.\nrank 1: [boom]")),
        (RING, Skipped("Horovod is not installed.", "dream build-horovod")),
    ]


def shown(width, made=None, cores=2, load=0.5):
    out = io.StringIO()
    console = Console(file=out, width=width)
    report.show(judge(made or cells()), SETTINGS, Machine(cores, load), console)
    return out.getvalue()


def test_one_table_where_it_fits():
    lines = shown(160).splitlines()
    header = " ".join(lines[:3])
    for column in ("framework", "strategy", "replicas", "reduction", "samples/s", "start-up"):
        assert column in header
    for column in ("peak", "loss", "score", "difference", "verdict"):
        assert column in header
    row = next(line for line in lines if "mirrored " in line)
    for word in (
        "torch",
        "gloo",
        "2,000",
        "1,900 to 2,100",
        "0.25x",
        "0.5000",
        "0.9375",
        "e-0",
        "301",
        "equal",
    ):
        assert word in row


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_line_is_wider_than_the_console_nor_a_figure_lost(width):
    text = shown(width)
    assert max(map(len, text.splitlines())) <= width
    for word in ("8,000", "0.5000", "0.9375", "CRASHED", "the oracle"):
        assert word in text


def test_reasons_are_below_and_taken_literally():
    text = shown(100)
    assert "rank 1: [boom]" in text
    assert "Run: dream build-horovod" in text
    text = " ".join(text.split())
    assert "1 of 4 rows broke a law or did not finish. 1 skipped or refused." in text
    assert "Not to be trusted: tensorflow mirrored" in text


def test_curves_are_laid_over_each_other():
    text = shown(100)
    assert "epoch 2" in text
    assert "Largest difference between the frameworks' losses: 1.0e-07." in text
    assert "epoch 2" not in shown(100, cells()[:2])


def test_all_is_well():
    assert "All 2 rows learned the weights of single" in shown(100, cells()[:2])


def test_more_replicas_than_cores_is_said():
    assert "2 replicas on 1 cores" in " ".join(shown(200, cores=1).split())
    assert "on 2 cores" not in shown(200, cores=2)


def test_a_busy_machine_is_said():
    assert "busy (load 3.0 before the first row)" in " ".join(shown(200, load=3.0).split())
    assert "busy" not in shown(200)


def test_the_document_has_every_figure(tmp_path):
    figures = document.build(judge(cells()), SETTINGS, Machine(2, 0.5))
    write_json(tmp_path / "out.json", figures)
    read = json.loads((tmp_path / "out.json").read_text())
    assert read == figures
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    first, second, _, broken, skipped = read["cells"]
    assert (first["verdict"], first["reduction"]) == ("the oracle", None)
    assert second["speed_against_single"] == 0.25
    assert second["largest_parameter_difference"] <= 1e-6
    assert len(second["parameter_digests"]) == len(second["peak_bytes_per_rank"]) == 2
    assert second["losses"] == [1.5, 0.5]
    assert "boom" in broken["reason"]
    assert "losses" not in broken
    assert skipped["good"]
    assert not read["good"]
    assert read["loss_difference_between_frameworks"] == pytest.approx(1e-7)


def test_what_is_not_a_number_is_null():
    made = [(SINGLE, finished(SINGLE)), (MIRRORED, finished(MIRRORED, losses=(math.nan, 1.0)))]
    figures = document.build(judge(made), SETTINGS, Machine(2, 0.5))
    assert figures["cells"][1]["losses"] == [None, 1.0]
    assert not figures["good"]


def test_a_file_gets_lines_that_a_screen_can_show(capsys, monkeypatch):
    """stdout is no terminal here: no table is wider than a screen by default."""
    monkeypatch.delenv("COLUMNS", raising=False)
    report.show(judge(cells()), SETTINGS, Machine(2, 0.5), screen())
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line for line in lines if line.startswith("torch") and " mirrored " in line]
    assert len(rows) > 1
    for figure in ("2,000", "1,900 to 2,100", "0.25x", "0.5000", "0.9375", "301", "equal"):
        assert sum(figure in row for row in rows) == 1
