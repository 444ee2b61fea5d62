"""Files of Keras models in a job of two ranks: whose they are, and when they are read."""

from __future__ import annotations

from pathlib import Path

import keras_launching
import pytest
from keras_launching import Cell

pytestmark = pytest.mark.slow


def test_files_are_rank_0s_or_each_ranks_own(tmp_path: Path) -> None:
    (tmp_path / "link.keras").symlink_to(tmp_path / "target.keras")
    ranks = keras_launching.call(Cell("torch", 2), "keras_files", "run", tmp_path)
    for number, rank in enumerate(ranks):
        assert rank["weights"] == [1.0, 2.0]
        assert rank["model"] == [1.0, 2.0]
        assert rank["own"] == 10.0 + number
        assert rank["link"] == (True, True)
        assert rank["left"] == []


@pytest.mark.parametrize("backend", ["torch", "tensorflow"])
def test_a_checkpoint_that_rank_0_alone_has_written_is_named(tmp_path: Path, backend: str) -> None:
    first, second = keras_launching.call(Cell(backend, 2), "keras_files", "checkpoints", tmp_path)
    assert first == "found"
    assert second.startswith("dream: ModelCheckpoint writes on rank 0 alone, and rank 1 finds no")
    assert "Give all ranks one folder" in second


@pytest.mark.parametrize(
    "backend", ["torch", pytest.param("tensorflow", marks=pytest.mark.exhaustive)]
)
def test_what_a_checkpoint_keeps_is_the_same_on_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """A script that goes by `best` does the same on all."""
    monkeypatch.chdir(tmp_path)
    for best, least in keras_launching.call(Cell(backend, 2), "keras_files", "best"):
        assert best == least


def test_a_checkpoint_that_rank_0_alone_is_given_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = keras_launching.call(Cell("torch", 2), "keras_files", "of_rank_0_alone")
    assert first == second
