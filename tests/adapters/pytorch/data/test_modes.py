"""Whether a pass is one to train on, where models come and go."""

from __future__ import annotations

import folds
import pytest

import dream


def test_each_fold_of_a_cross_validation_is_dealt() -> None:
    """A model that is in eval mode by then is not the one that the pass trains."""
    plain = folds.train("")
    for found in dream.launch(folds.train, "mirrored", n=2, framework="torch", timeout=300):
        assert found["trained"] == [10, 10, 10]
        assert found["evaluated"] == plain["evaluated"] == [30] * 9
        assert found["ends"] == pytest.approx(plain["ends"], rel=0, abs=1e-6)
