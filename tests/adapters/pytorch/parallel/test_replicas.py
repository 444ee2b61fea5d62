"""Replicas of one process learn what one device learns, whatever the loss is the mean of."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import replica_scripts
from launch_scripts import alone

pytestmark = pytest.mark.slow
SCRIPT = Path(replica_scripts.__file__)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("replicas") / "found.pickle"
    ended = alone([str(SCRIPT), str(file)], "torch")
    assert ended.returncode == 0, ended.stderr
    return pickle.loads(file.read_bytes())


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
