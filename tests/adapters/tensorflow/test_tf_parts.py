"""`input="sharded"` in Keras's fit: each sample once an epoch, weighed as one device would."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tf_parts
from launch_scripts import keras_on
from tf_parts import FOLDER, LENGTHS, RANKS, REFUSED

import dream

pytestmark = pytest.mark.slow
Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    folder = tmp_path_factory.mktemp("files")
    tf_parts.write(folder)
    calls = [i.callspec.params for i in request.session.items if hasattr(i, "callspec")]
    shuffled = sorted({call["shuffled"] for call in calls if "shuffled" in call})
    environ = keras_on("tensorflow") | {FOLDER: str(folder)}
    return dream.launch(
        tf_parts.everything, shuffled, n=RANKS, framework="tensorflow", timeout=300, env=environ
    )


def test_uneven_parts_train_as_their_global_batches_on_one_device(ranks: Ranks) -> None:
    """Dropout, BatchNorm and the last batches, of which some ranks have none, included. A BatchNorm
    over two rows divides rounding by a small spread: 3e-6 on some CPUs, 2e-7 of it in float64."""
    whole = ranks[0]["one device"]
    for rank in (each["fitted"] for each in ranks):
        assert rank["loss"] == pytest.approx(whole["loss"], rel=1e-5)
        for ours, theirs in zip(rank["weights"], whole["weights"], strict=True):
            assert np.abs(ours - theirs).max() <= 1e-5


@pytest.mark.parametrize("shuffled", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_each_sample_comes_once_an_epoch(ranks: Ranks, shuffled: bool) -> None:
    for rank in ranks:
        assert rank["counted"][shuffled] == [2] * sum(LENGTHS)


def test_validation_and_arrays_are_read_as_ever(ranks: Ranks) -> None:
    first, *others = (rank["fitted"]["val"] for rank in ranks)
    assert all(np.isfinite(first))
    assert all(other == first for other in others)


def test_what_cannot_be_read_in_parts_is_refused(ranks: Ranks) -> None:
    for rank in (each["refused"] for each in ranks):
        assert rank.keys() == REFUSED.keys()
        for kind, words in REFUSED.items():
            assert words in rank[kind]
