"""Scripts in the block, with nothing else changed, end as they do without dream: weights, logs, and
what every generator draws next."""

from __future__ import annotations

from typing import Any

import keras_launching
import numpy as np
import pytest
from keras_figures import asked, once, over
from keras_launching import Cell

pytestmark = pytest.mark.slow
NAMES = (
    "convnet",
    "two_fits_in_a_row",
    "folds",
    "vae",
    "vae_of_the_global_generator",
    "transformer",
    "noise",
    "recurrent",
    "recurrent_one_way",
    "python_dataset",
    "frameworks_own_data",
    "generated",
    "computed_again",
    "step_by_hand",
)


HELD = {
    "convnet": "noise, and shuffled, dropout and batch_normalisation of the contract",
    "transformer": "noise: its masks are dropout's too",
    "recurrent": "recurrent_one_way: TensorFlow takes half a minute for both ways",
    "two_fits_in_a_row": "python_dataset, and the weights of the contract and of test_keras_losses",
    "folds": "python_dataset: a fit a fold",
    "vae": "noise and step_by_hand, which have seeded layers too",
    "vae_of_the_global_generator": "noise, whose generator is the global one in parts",
    "generated": "datasets_of_unknown_length of test_keras_steps, python_generator of ..._fit",
}


@pytest.fixture(name="ranks")
def ended(request: pytest.FixtureRequest) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What scripts end with without dream, and on each rank."""
    cell: Cell = request.param
    names = asked(request)

    def act() -> Any:
        (alone,) = _run(Cell(cell.backend, 1), None, names)
        return alone, _run(cell, cell.options, names)

    found: tuple[dict[str, Any], list[dict[str, Any]]] = once(("scripts", cell), act)
    return found


def _run(cell: Cell, options: dict[str, Any] | None, names: list[str]) -> list[dict[str, Any]]:
    return keras_launching.call(cell, "keras_scripts", "run", options, names)


@over(NAMES, held=HELD)
def test_a_script_ends_as_without_dream(
    ranks: tuple[dict[str, Any], list[dict[str, Any]]], name: str
) -> None:
    alone, found_by = ranks[0][name], [rank[name] for rank in ranks[1]]
    for found in (alone, *found_by):
        assert not isinstance(found, str), found
    for rank in found_by:
        # of a model that draws in predict: on devices TensorFlow itself cuts batches there
        left_out = set() if len(found_by) > 1 else {"predicted", "then"}
        assert alone.keys() - rank.keys() <= left_out
        for key, ours in rank.items():
            close = np.allclose(ours, alone[key], rtol=2e-6, atol=2e-6)
            assert close, f"{key}: {ours}, without dream {alone[key]}"


def test_every_script_is_run() -> None:
    assert keras_launching.source("keras_scripts").count("@script\n") == len(NAMES)
