"""`accumulate="auto"` of Keras models: memory that runs out costs time, and no number."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from keras_launching import Cell, call

pytestmark = pytest.mark.slow

RANKS = pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])


@cache
def results(ranks: int) -> list[dict[str, Any]]:
    return call(Cell("torch", ranks), "keras_fitting", "everything")


@RANKS
@pytest.mark.parametrize("loop", ["fit", "train_step"])
@pytest.mark.parametrize(
    "case",
    [
        "with room",
        "in forward",
        "in backward on the last rank",
        "in forward on the last rank, later",
    ],
)
def test_a_step_is_begun_again_with_the_same_numbers(ranks: int, loop: str, case: str) -> None:
    for rank in results(ranks):
        plain, found = rank[loop]["plain"], rank[loop][case]
        np.testing.assert_allclose(found["logs"], plain["logs"], rtol=0, atol=2e-6)
        for value, expected in zip(found["weights"], plain["weights"], strict=True):
            np.testing.assert_allclose(value, expected, rtol=0, atol=2e-6)
        assert found["drawn"] == plain["drawn"]
        assert (found["called"] > plain["called"]) == (case != "with room")


@RANKS
def test_where_one_row_is_too_much_the_frameworks_own_error_comes_with_a_hint(ranks: int) -> None:
    *others, (name, said, hint) = (rank["one row"] for rank in results(ranks))
    assert (name, "can't allocate memory" in said) == ("RuntimeError", True)
    assert f"memory ran out with {4 // ranks} micro-batches to an update, of one row each" in hint
    for name, said in others:
        assert (name, "Another rank's memory ran out" in said) == ("WorkerFailed", True)


@RANKS
@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ("norm", "accumulate='auto' and batch_normalization"),
        ("dropout", "accumulate='auto' and dropout"),
    ],
)
def test_what_micro_batches_change_is_refused(ranks: int, layer: str, said: str) -> None:
    for rank in results(ranks):
        assert said in rank[layer]


def test_tensorflow_refuses_it() -> None:
    (said,) = call(Cell("tensorflow", 1), "keras_fitting_tensorflow", "refused")
    assert (
        "'mirrored' on TensorFlow cannot choose the number of micro-batches automatically" in said
    )
