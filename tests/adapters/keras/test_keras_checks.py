"""What cannot be exact is refused in words, the order is dream's, and nothing stays patched."""

from __future__ import annotations

from typing import Any

import keras_launching
import numpy as np
import pytest
from keras_launching import CELLS, Cell

OTHER = (
    "Desynchronized: The ranks' data differ: the same index gives different samples, or the "
    "lengths differ. Received: {}: rank 1 other than rank 0."
)
BATCHES = (
    "Desynchronized: The ranks read different batches from the same source. Received: rank 1 other "
    "than rank 0"
)
EXPECTED = {
    "unreduced_loss": "Unsupported: This loss is not one number",
    "loss_that_compares_rows": "Unsupported: The loss 'circle' gives a sample another value",
    "epoch_without_a_step": "ConfigurationError: An epoch had no training steps",
    "step_that_ends_itself": "RuntimeError: A step ended as data does",
    "other_gradients_of_the_users_own_loop": "ConfigurationError: These gradients are one",
    "other_auto_shard_policy_off": "Unsupported: A batch of a tf.data.Dataset is the global one",
    "other_auto_shard_policy_file": "Unsupported: A batch of a tf.data.Dataset is the global one",
    "recompute_auto": "ConfigurationError: ",
    "generators_of_other_batches": BATCHES,
    "batch_smaller_than_replicas": "ConfigurationError: batch_size is the global batch size",
    "metric_that_is_no_sum": "Unsupported: This metric's state is not a sum",
    "draws_of_each_rank": "Unsupported: In Keras models dropout and noise are always drawn for",
    "not_compiled": "ConfigurationError: The model has no optimizer",
    "other_batches_on_each_rank": BATCHES,
    "other_inputs_on_each_rank": OTHER.format("x"),
    "other_labels_on_each_rank": OTHER.format("y"),
    "other_files_on_each_rank": OTHER.format("x"),
    "other_validation_on_each_rank": OTHER.format("x"),
    "other_evaluation_on_each_rank": OTHER.format("x"),
    "other_prediction_on_each_rank": OTHER.format("x"),
}
pytestmark = pytest.mark.slow


RANKS, DEVICES, ON_TENSORFLOW = CELLS
EXHAUSTIVE = pytest.mark.exhaustive
REFUSING = [RANKS, pytest.param(DEVICES, marks=EXHAUSTIVE), ON_TENSORFLOW]
KEEPING = [RANKS, DEVICES, pytest.param(ON_TENSORFLOW, marks=EXHAUSTIVE)]
"""What is refused is no matter of devices; what is left behind is the same beside other ranks."""


@pytest.fixture(scope="module")
def cell(request: pytest.FixtureRequest) -> Cell:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def said(cell: Cell) -> list[dict[str, str]]:
    return keras_launching.call(cell, "keras_refusals", "run", cell.options, _tried(cell))


def _tried(cell: Cell) -> list[str]:
    """Not what differs between ranks, where there is one."""
    return [name for name in EXPECTED if cell.ranks > 1 or "other_" not in name]


@pytest.mark.parametrize("cell", REFUSING, ids=str, indirect=True)
@pytest.mark.parametrize("name", EXPECTED)
def test_refused_on_every_rank(cell: Cell, said: list[dict[str, str]], name: str) -> None:
    if name not in _tried(cell):
        pytest.skip("one process reads one source")
    for rank in said:
        assert rank[name].startswith(EXPECTED[name])
        assert "Received: " in rank[name]


def test_sparse_and_ragged_tensors_are_refused() -> None:
    """On TensorFlow alone can they be fitted on."""
    said = keras_launching.call(ON_TENSORFLOW, "keras_refusals", "sparse_and_ragged")
    for rank in said:
        assert all("Make it dense" in words for words in rank), rank
        assert [words.partition("a ")[2].split()[0] for words in rank] == [
            "SparseTensor", "SparseTensor", "SparseTensor", "RaggedTensor",
        ]  # fmt: skip


def test_layers_that_keras_gets_wrong_where_sizes_are_unknown_are_refused() -> None:
    """TimeDistributed goes over as many steps as the batch has rows, and an elastic transform takes
    one image for all."""
    for words in keras_launching.call(ON_TENSORFLOW, "keras_refusals", "steps_of_unknown_number"):
        assert "TimeDistributed goes over as many steps as the batch has rows" in words
    for words in keras_launching.call(ON_TENSORFLOW, "keras_refusals", "images_of_unknown_number"):
        assert "puts the first image of a batch in the place of others" in words


@pytest.mark.exhaustive
@pytest.mark.parametrize("cell", CELLS, ids=str, indirect=True)
def test_a_dataset_may_ask_to_be_divided_by_samples(cell: Cell) -> None:
    asked = ("keras_refusals", "fits_what_is_divided_by_samples", cell.options)
    for by_default, by_samples in keras_launching.call(cell, *asked):
        for ours, theirs in zip(by_samples, by_default, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.fixture(scope="module")
def kept(cell: Cell) -> list[dict[Any, Any]]:
    ways = [False, True] if cell.devices == 1 else [False]
    return keras_launching.call(cell, "keras_refusals", "kept", cell.options, ways)


@pytest.mark.parametrize("cell", KEEPING, ids=str, indirect=True)
def test_nothing_stays_patched_and_classes_stay_keras(kept: list[dict[Any, Any]]) -> None:
    for rank in kept:
        assert rank["left_behind"] == {"same": True, "kinds": (True, True), "config": 0.9}


@pytest.mark.parametrize("cell", KEEPING, ids=str, indirect=True)
def test_the_order_goes_on_from_fit_to_fit(kept: list[dict[Any, Any]]) -> None:
    for rank in kept:
        figures = rank["order_of_epochs"]
        assert not isinstance(figures, str), figures
        assert figures["dream"] == pytest.approx(figures["plain"], abs=1e-6)


@pytest.mark.parametrize("cell", KEEPING, ids=str, indirect=True)
@pytest.mark.parametrize("by_hand", [False, True], ids=["fit", "train_step"])
def test_masks_of_micro_batches_are_said_to_be_their_own(
    kept: list[dict[Any, Any]], by_hand: bool
) -> None:
    if by_hand not in kept[0]:
        pytest.skip("its batches come from strategy.prepare alone")
    lines = kept[0][by_hand]
    assert not isinstance(lines, str), lines
    assert [line for line in lines if "drops draws for each micro-batch by itself" in line]
