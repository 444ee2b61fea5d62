"""`split="layers"` in several processes, with two devices each."""

from __future__ import annotations

from typing import Any

import layer_ranks
import pytest

import dream

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = str(tmp_path_factory.mktemp("kept"))
    return dream.launch(layer_ranks.everything, folder, n=2, framework="torch", timeout=600)


def test_ranks_of_two_devices_learn_what_one_device_does(ranks: Any) -> None:
    """Dropout of branches and a BatchNorm too, which all ranks come to in one order."""
    for rank in ranks:
        assert max(rank["exact"].values()) <= 1e-6, rank["exact"]


def test_branches_that_draw_do_so_in_turn_in_one_process_too() -> None:
    """One that comes first would have what the other draws on one device."""
    (found,) = dream.launch(layer_ranks.in_one_process, n=1, framework="torch", timeout=600)
    assert max(found.values()) <= 1e-6, found


def test_each_layer_runs_on_the_device_that_it_was_given(ranks: Any) -> None:
    for rank in ranks:
        assert rank["threads"] == [{"dream-device-0"}, {"dream-device-1"}]


def test_training_goes_on_from_a_checkpoint(ranks: Any) -> None:
    for rank in ranks:
        assert rank["kept"] <= 1e-6


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("data", ("ConfigurationError", "data=3, 2 processes")),
        ("devices", ("ConfigurationError", "model 3", "2")),
        ("accumulate", ("Unsupported", "accumulate='auto'", "'mirrored'")),
    ],
)
def test_what_cannot_be_is_refused(ranks: Any, what: str, words: tuple[str, ...]) -> None:
    for rank in ranks:
        said = rank["said"][what]
        assert all(word in said for word in words), said
