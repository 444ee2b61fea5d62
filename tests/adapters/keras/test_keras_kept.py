"""A step that is tried leaves what the script keeps as it was, and loaders that are read beside fit
give what plain Keras is given."""

from __future__ import annotations

import pytest
from keras_figures import CELLS, DEVICES, Ranks, assert_as_plain, ended_of, over
from keras_launching import Cell, call

pytestmark = pytest.mark.slow
EXHAUSTIVE = pytest.mark.exhaustive
MODULE = "keras_kept"
TORCH, FURTHER = CELLS[:1], [Cell("torch", 3)]
ANY = [
    "generators_of_its_own", "what_it_counts", "an_iterator_of_its_own",
    "what_its_functions_go_by",
]  # fmt: skip
OF_TORCH = [
    "tensors_and_generators_of_torch", "gradients_that_add_up", "a_loader_in_a_step",
    "what_a_loss_and_its_like_count",
]  # fmt: skip
LOADERS = [
    "loaders_beside_fit", "an_evaluation_with_gradients", "a_model_called_between_steps",
]  # fmt: skip
ranks = ended_of(MODULE)


@over(ANY, cells=TORCH, further=[Cell("tensorflow", 2)])
def test_what_a_step_keeps_is_that_of_one_device(ranks: Ranks, name: str) -> None:
    assert_as_plain(ranks, name, rtol=1e-6, atol=1e-6)


@over(OF_TORCH, cells=TORCH, further=())
def test_what_a_step_on_torch_keeps_is_that_of_one_device(ranks: Ranks, name: str) -> None:
    assert_as_plain(ranks, name, rtol=1e-6, atol=1e-6)


@over(LOADERS, cells=TORCH, further=FURTHER)
def test_loaders_that_are_not_trained_on_are_read_whole(ranks: Ranks, name: str) -> None:
    assert_as_plain(ranks, name, rtol=1e-6, atol=1e-6)


def test_a_torch_loop_over_a_keras_model_is_told_nothing_that_is_not_so() -> None:
    names = ["Keras's loss", "Keras's metric"]
    for rank in call(TORCH[0], MODULE, "told", names):
        assert rank == {name: [] for name in names}


@pytest.mark.parametrize("eagerly", [False, pytest.param(True, marks=EXHAUSTIVE)])
@pytest.mark.parametrize("cell", [CELLS[1], DEVICES], ids=str)
def test_what_counts_in_python_in_a_step_that_is_traced_is_told(cell: Cell, eagerly: bool) -> None:
    """Ranks that run each step in Python count alike."""
    for quiet, counts, draws in call(cell, MODULE, "told_of_python", eagerly):
        assert quiet == ""
        told = not eagerly or cell == DEVICES
        assert counts.startswith("a step that changes Counts.calls.") == told
        assert draws.startswith("a step that changes a Generator.") == told
