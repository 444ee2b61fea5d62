"""Replicas of one process learn what one device learns, whatever the loss is the mean of."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import replica_habits
import replica_scripts
from launch_scripts import alone

pytestmark = pytest.mark.slow


def _left(script: str, folder: Path) -> Any:
    """What a script leaves."""
    file = folder / "found.pickle"
    ended = alone([script, str(file)], "torch")
    assert ended.returncode == 0, ended.stderr
    return pickle.loads(file.read_bytes()), ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return _left(replica_scripts.__file__, tmp_path_factory.mktemp("replicas"))[0]


@pytest.fixture(scope="module")
def habits(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return _left(replica_habits.__file__, tmp_path_factory.mktemp("habits"))


@pytest.mark.parametrize("name", replica_scripts.STEPS)
def test_a_step_is_that_of_one_device(found: Any, name: str) -> None:
    plain, dream = found[name]
    for one, other in zip(plain, dream, strict=True):
        assert (one - other).abs().max() < 1e-6 * max(1.0, float(one.abs().max()))


@pytest.mark.parametrize("what", ["kept", "late"])
def test_what_parts_cannot_share_is_the_whole_batchs(found: Any, what: str) -> None:
    """What a model keeps of a call was lost with its copies, and the loss had an older call's.
    After a block, a backward pass drew again what nobody had drawn."""
    plain, dream = found[what]
    for one, other in zip(plain, dream, strict=True):
        assert (one - other).abs().max() < 1e-6


def test_dropout_that_torch_computes_again_is_refused(found: Any) -> None:
    assert "torch.utils.checkpoint" in found["again"]
    assert "recompute=True" in found["again"]


@pytest.mark.parametrize("name", [habit.__name__ for habit in replica_habits.HABITS])
def test_a_model_does_what_it_does_on_one_device(habits: Any, name: str) -> None:
    """Random numbers that are not torch's, outputs that are no tensors, coupling in training alone,
    what a call writes or counts anywhere: copies, and the look at them, changed each in silence."""
    plain, dream = habits[0][name]
    for one, other in zip(plain, dream, strict=True):
        assert (one - other).abs().max() < 1e-6


def test_why_one_device_has_the_calls_is_said(habits: Any) -> None:
    for why in ("by another generator than torch's", "writes to Habit.words in", "sets seen in"):
        assert f"{why}" in habits[1]


def test_copies_of_a_recurrent_layer_know_their_own_weights(habits: Any) -> None:
    """Each took the model's for them until its call, which was taken for what that keeps: so all
    ran on one device."""
    assert "GRU" not in habits[1]
