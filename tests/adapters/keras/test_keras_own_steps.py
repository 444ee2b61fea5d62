"""What replicas cannot share of a step of one's own is said, and nothing is of what they can."""

from __future__ import annotations

import pytest
from keras_launching import CELLS, Cell, call

pytestmark = pytest.mark.slow
SAID = {
    "sum": "Received: own, which is no mean",
    "largest, tracked in tests": "The metric 'tracked' gives one number for a batch",
    "masked": "no mean of its parts'",
    "coupled": "no mean of its parts'",
    "left out": "no mean of its parts'",
    "by a metric": "no mean of its parts'",
    "joined": "of a number that the script has written down",
    "capped": "another output in a part of its batch",
    "clipped": "another gradient in a part of its batch",
    "rate": "Unsupported: A step sets its learning rate by its batch",
    "of positives": "gives one number for a batch",
    "remembers False": "'remembers' changes a variable of its own by its batch",
    "a root": "Received: root, which is no mean",
    "a root, tested": "Received: root, which is no mean",
    "of metrics": "Received: twice, which is no mean",
    "state False": "kept is a state that",
    "metric False": "metric worst is more than a sum",
    "root_error": "The metric 'root_error' gives one number for a batch",
}
QUIET = (
    "mean",
    "noisy mean",
    "beside noise",
    "penalised",
    "compiled",
    "turned",
    "remembers True",
    "a mean",
    "a mean, tested",
    "state True",
    "metric True",
    "mean_error",
    "mean, tracked",
    "sum, tracked",
    "mean, tracked in tests",
    "sum, tracked in tests",
    "attends",
)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(c, marks=[pytest.mark.exhaustive] * (c.devices > 1 or c.backend == "torch"))
        for c in CELLS
    ],
    ids=str,
)
def said(request: pytest.FixtureRequest) -> dict[str, str]:
    cell: Cell = request.param
    first: dict[str, str] = call(cell, "keras_own_steps", "said_of_all", cell.devices)[0]
    return first


def test_what_replicas_cannot_share_is_said(said: dict[str, str]) -> None:
    for name, words in SAID.items():
        assert words in said[name], name


def test_devices_that_cannot_meet_within_a_condition_say_so(said: dict[str, str]) -> None:
    refused = "Unsupported: The devices of one process cannot meet"
    assert said.get("conditional", refused).startswith(refused)


def test_nothing_is_said_of_what_they_can(said: dict[str, str]) -> None:
    for name in QUIET:
        assert not said[name], name


def test_a_number_that_the_step_counts_with_stays(said: dict[str, str]) -> None:
    assert said["counter"] == "1.0"


@pytest.mark.parametrize("cell", [CELLS[0], CELLS[2]], ids=str)
def test_noise_of_a_size_that_is_written_down_is_that_of_one_device(cell: Cell) -> None:
    apart = call(cell, "keras_own_numbers", "apart_by_noise_of_a_written_size")
    assert max(apart) < 1e-6


@pytest.mark.parametrize(
    "cell", [CELLS[0], *(pytest.param(c, marks=pytest.mark.exhaustive) for c in CELLS[1:])], ids=str
)
def test_a_step_of_a_summed_loss_is_that_of_one_device(cell: Cell) -> None:
    assert max(call(cell, "keras_own_numbers", "apart_by_a_summed_loss")) < 1e-6


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_sums_that_a_step_tracks_are_those_of_one_device(cell: Cell) -> None:
    assert max(call(cell, "keras_own_numbers", "apart_by_tracked_sums")) < 1e-6


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_answers_that_hang_on_other_rows_are_of_whole_batches_or_said(cell: Cell) -> None:
    for shape, said in call(cell, "keras_own_numbers", "answers_by_other_rows"):
        if cell.devices == 1:
            assert shape == [8, 8]
        else:
            assert SAID["capped"] in said


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_optimizers_with_rules_of_their_own_are_those_of_one_device(cell: Cell) -> None:
    for rank in call(cell, "keras_own_numbers", "apart_by_optimizers"):
        for name, apart in rank.items():
            assert apart < 1e-6, name


@pytest.mark.parametrize(
    "cell", [CELLS[2], pytest.param(CELLS[1], marks=pytest.mark.exhaustive)], ids=str
)
def test_a_share_is_weighed_in_the_dtype_of_a_float64_model(cell: Cell) -> None:
    """On TensorFlow: on torch Keras rounds to float32 in such models by itself."""
    assert max(call(cell, "keras_own_numbers", "apart_in_float64")) < 1e-13
