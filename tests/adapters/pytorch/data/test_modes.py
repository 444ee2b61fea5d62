"""Whether a pass is one to train on, where models come and go."""

from __future__ import annotations

import folds
import pytest
import two_modes

import dream


def test_each_fold_of_a_cross_validation_is_dealt() -> None:
    """A model that is in eval mode by then is not the one that the pass trains."""
    plain = folds.train("")
    for found in dream.launch(folds.train, "mirrored", n=2, framework="torch", timeout=300):
        assert found["trained"] == [10, 10, 10]
        assert found["evaluated"] == plain["evaluated"] == [30] * 9
        assert found["ends"] == pytest.approx(plain["ends"], rel=0, abs=1e-6)


@pytest.mark.parametrize("trial", ["keeps", "sum", "noise"])
def test_whole_batches_of_one_loader_are_no_share_beside_those_of_another(trial: str) -> None:
    """A pass that begins in eval mode gives every rank all, be it trained on: its batch norms,
    masks, noise and sums count once, though a rank has its share of what another pass gives."""
    plain = two_modes.train("", trial)
    found = dream.launch(two_modes.train, "mirrored", trial, n=2, framework="torch", timeout=300)
    for each in found:
        assert each == pytest.approx(plain, rel=0, abs=1e-5)
