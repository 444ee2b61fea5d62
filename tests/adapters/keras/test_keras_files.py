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
