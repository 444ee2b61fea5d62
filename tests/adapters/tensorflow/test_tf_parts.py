"""`input="sharded"` in Keras's fit: each sample once an epoch, weighed as one device would."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tf_parts
from tf_parts import FOLDER, LENGTHS, RANKS, REFUSED, as_one_device

import dream

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tf_parts.write(tmp_path)
    monkeypatch.setenv(FOLDER, str(tmp_path))


def test_uneven_parts_train_as_their_global_batches_on_one_device() -> None:
    """Dropout, BatchNorm and the last batches, of which some ranks have none, included. A BatchNorm
    over two rows divides rounding by a small spread: 3e-6 on some CPUs, 2e-7 of it in float64."""
    ranks = dream.launch(tf_parts.weights_in_parts, n=RANKS, framework="tensorflow", timeout=300)
    (whole,) = dream.launch(as_one_device, n=1, framework="tensorflow", timeout=300)
    for rank in ranks:
        assert rank["loss"] == pytest.approx(whole["loss"], rel=1e-5)
        for ours, theirs in zip(rank["weights"], whole["weights"], strict=True):
            assert np.abs(ours - theirs).max() <= 1e-5


@pytest.mark.parametrize("shuffle", [False, True])
def test_each_sample_comes_once_an_epoch(shuffle: bool) -> None:
    ranks = dream.launch(tf_parts.counted, shuffle, n=RANKS, framework="tensorflow", timeout=300)
    for rank in ranks:
        assert rank == [2] * sum(LENGTHS)


def test_validation_and_arrays_are_read_as_ever() -> None:
    first, *others = dream.launch(tf_parts.in_parts, n=RANKS, framework="tensorflow", timeout=300)
    assert all(np.isfinite(first["val"]))
    assert all(other == first for other in others)


def test_what_cannot_be_read_in_parts_is_refused() -> None:
    for rank in dream.launch(tf_parts.refused, n=RANKS, framework="tensorflow", timeout=300):
        assert rank.keys() == REFUSED.keys()
        for kind, words in REFUSED.items():
            assert words in rank[kind]
