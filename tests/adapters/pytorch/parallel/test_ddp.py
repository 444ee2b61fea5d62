"""DDP's buckets: gradients are held once, and go over shared memory too."""

from __future__ import annotations

import ddp_memory
import ddp_shared_memory
import pytest
import torch

import dream
from dream.shared_memory import status


@pytest.mark.slow
@pytest.mark.parametrize("way", ["at once", "prepared", "after a loop"])
def test_gradients_are_held_once(way: str) -> None:
    """Whichever way a model was distributed."""
    for rank in dream.launch(ddp_memory.grown, way, n=2, framework="torch", timeout=500):
        assert rank["gradients"] < 1.6, rank


def test_models_of_before_are_let_go() -> None:
    """As of folds, or of a search over settings. All of them stayed in memory."""
    for counts in dream.launch(ddp_memory.living, n=2, framework="torch", timeout=200):
        assert counts == [counts[0]] * len(counts)


@pytest.mark.parametrize("word", ["mirrored", "sharded"])
def test_ranks_may_let_go_of_models_at_other_times(word: str) -> None:
    """What is compared is of the models that are stepped: others may be there on one rank alone."""
    expected = ddp_memory.folds("")
    for losses in dream.launch(ddp_memory.folds, word, n=2, framework="torch", timeout=200):
        assert losses == pytest.approx(expected, rel=0, abs=1e-5)


@pytest.mark.skipif(status().path is None, reason=status().why)
@pytest.mark.parametrize("ranks", [2, 3])
def test_gradients_over_shared_memory_are_those_of_one_device(ranks: int) -> None:
    found = dream.launch(ddp_shared_memory.both, n=ranks, framework="torch", timeout=500)
    first = found[0][0]
    assert first["shared"].abs().max() > 0.01
    for gradients, refusal in found:
        assert torch.equal(gradients["shared"], first["shared"])
        for other in ("alone", "gloo"):
            assert (gradients["shared"] - gradients[other]).abs().max() < 1e-6
        assert "Received: torch.int8" in refusal


@pytest.mark.skipif(status().path is None, reason=status().why)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_buckets_move_into_memory_of_all_ranks_once_they_stay(ranks: int) -> None:
    """They are made again after the first backward pass. The sum has the ranks' order, and is
    divided once: gloo divides what each brings and adds it in its ring's order, so of three ranks
    its bits are others."""
    act = ddp_shared_memory.where_buckets_lie
    for rank in dream.launch(act, False, n=ranks, framework="torch", timeout=500):
        assert rank == [(True, False), *[(True, True)] * 3]


@pytest.mark.skipif(status().path is None, reason=status().why)
def test_without_room_buckets_are_copied() -> None:
    act = ddp_shared_memory.where_buckets_lie
    for rank in dream.launch(act, True, n=2, framework="torch", timeout=500):
        assert rank == [(True, False)] * 4
