"""A rank that has no row of the last batch: nested tensors, and loops that add up nothing there."""

from __future__ import annotations

import no_row
import pytest

import dream

pytestmark = pytest.mark.slow


def _launched(act: object) -> list[object]:
    return dream.launch(act, n=2, framework="torch", timeout=200)  # type: ignore[arg-type]


def test_nested_batches_train_what_they_do_on_one_device() -> None:
    assert all(each < 1e-6 for each in _launched(no_row.of_nested))  # type: ignore[operator]


def test_a_model_that_takes_no_nested_batch_of_no_row_is_named() -> None:
    assert "Pass drop_last=True" in str(_launched(no_row.of_nested_without_sizes)[1])


def test_of_a_number_in_place_of_a_loss_it_is_said_what_to_write() -> None:
    said = str(_launched(no_row.of_a_number)[1])
    assert "'int' object has no attribute 'backward'" in said
    assert "begin with `loss = output.sum() * 0`" in said


def test_a_list_with_a_dict_for_each_sample_is_empty() -> None:
    assert all(each < 1e-6 for each in _launched(no_row.of_boxes))  # type: ignore[operator]
