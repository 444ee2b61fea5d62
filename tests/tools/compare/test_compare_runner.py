"""What is missing is skipped with the way to get it, or refused where it was named."""

import subprocess
import sys

import pytest

from dream import NotInstalled
from dream.tools import support
from dream.tools.compare import runner
from dream.tools.compare.cells import grid


@pytest.fixture
def without(monkeypatch):
    """A machine without some packages; Horovod only for the backends named."""

    def make(*packages, ring=()):
        there = lambda name: None if name in packages else object()  # noqa: E731
        monkeypatch.setattr(runner, "find_spec", there)
        monkeypatch.setattr(runner, "horovod_gap", lambda of: None if of in ring else "absent")

    return make


def test_what_is_here_is_not_missing(without):
    without(ring=("torch", "tensorflow"))
    cells = grid(["torch", "tensorflow", "keras-torch"], ["mirrored", "horovod"], 2)
    assert not any(map(runner.missing, cells))
    runner.require(cells, ["torch"], ["horovod"])


def test_a_missing_framework_names_its_extra(without):
    without("tensorflow")
    torch, tensorflow = grid(["torch", "tensorflow"], ["single"], 2)
    assert runner.missing(torch) is None
    assert "tensorflow not installed" in runner.missing(tensorflow).reason
    assert "dream-systems[tensorflow]" in runner.missing(tensorflow).install
    runner.require([torch, tensorflow], [], [])
    with pytest.raises(NotInstalled, match=r"'tensorflow'.*dream-systems"):
        runner.require([torch, tensorflow], ["torch", "tensorflow"], [])


def test_a_missing_ring_names_its_command_under_either_spelling(without):
    without()
    cells = grid(["torch"], ["horovod", "mirrored:reduction=horovod"], 2)
    assert [gap and gap.install for gap in map(runner.missing, cells)] == [
        None,
        "dream build-horovod",
        "dream build-horovod",
    ]
    with pytest.raises(NotInstalled, match="build-horovod"):
        runner.require(cells, [], ["horovod"])


def test_a_ring_for_one_framework_is_enough(without):
    without(ring=("torch",))
    cells = grid(["torch", "tensorflow"], ["horovod"], 2)
    runner.require(cells, [], ["horovod"])
    assert "Horovod for tensorflow: absent" in runner.missing(cells[-1]).reason


def test_nothing_at_all_is_refused(without):
    without("torch", "tensorflow", "keras")
    with pytest.raises(NotInstalled, match="pip install"):
        runner.require(grid(["torch", "tensorflow"], ["single"], 2), [], [])


def test_looking_imports_no_framework():
    code = (
        "import sys; from dream.tools.compare import cells as rows, main, runner;"
        "cells = rows.grid(rows.KINDS, ['single', 'horovod'], 2);"
        "[runner.missing(cell) for cell in cells];"
        "print(sorted({'torch', 'tensorflow', 'keras', 'numpy', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_strategy_that_a_framework_lacks_is_a_line_and_stops_nothing(without, monkeypatch):
    without()
    monkeypatch.delitem(runner.registry.STRATEGIES, ("torch", "mirrored"))
    cells = grid(["torch"], ["mirrored"], 2)
    runner.require(cells, ["torch"], ["mirrored"])
    single, mirrored = map(runner.missing, cells)
    assert single is None
    assert (mirrored.reason, mirrored.install) == ("torch has no 'mirrored'.", "dream strategies")


@pytest.mark.parametrize(
    ("framework", "strategy", "words"),
    [
        ("tensorflow", "mirrored:reduction=gloo", "tensorflow cannot use this reduction"),
        ("tensorflow", "mirrored:bucket_mb=5", "'bucket_mb' has no meaning"),
        ("torch", "mirrored:reduction=nccl", "nccl: needs GPUs"),
    ],
)
def test_what_a_framework_cannot_do_is_a_line_and_ends_nothing(
    framework, strategy, words, monkeypatch
):
    monkeypatch.setattr(support, "gpus", lambda: 0)
    single, cell = grid([framework], [strategy], 2)
    assert runner.missing(single) is None
    assert words in runner.missing(cell).reason
