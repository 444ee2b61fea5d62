"""Which of the GPUs that a rank sees is its own. No GPU is needed to say so."""

from __future__ import annotations

import pytest

from dream import ConfigurationError
from dream._topology import Cluster, own_gpu, own_gpus


def rank(local: int, of: int) -> Cluster:
    return Cluster("srun", local, local, world_size=of, local_world_size=of)


@pytest.mark.parametrize(
    ("local", "of", "visible", "own"),
    [
        (0, 1, 1, 0),
        (1, 2, 1, 0),  # srun --gpus-per-task=1, Ray: each sees its own alone
        (7, 8, 1, 0),
        (0, 2, 2, 0),
        (1, 2, 2, 1),
        (3, 4, 8, 3),
    ],
)
def test_it_is_the_only_one_or_that_of_the_local_rank(
    local: int, of: int, visible: int, own: int
) -> None:
    assert own_gpu(rank(local, of), visible) == own


@pytest.mark.parametrize(
    ("local", "of", "visible", "first"), [(0, 2, 4, 0), (1, 2, 4, 2), (1, 2, 2, 0), (2, 4, 16, 4)]
)
def test_several_are_those_of_the_local_rank_in_a_row(
    local: int, of: int, visible: int, first: int
) -> None:
    assert own_gpus(rank(local, of), visible, 2) == first


def test_several_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"2 GPUs of its own.*3 GPUs for 2 .*Start 1 rank"):
        own_gpus(rank(1, 2), 3, 2)


@pytest.mark.parametrize(("local", "of", "visible"), [(2, 3, 2), (0, 3, 2), (3, 8, 4)])
def test_fewer_than_ranks_are_refused_on_every_rank(local: int, of: int, visible: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"{visible} GPUs for {of} .*CUDA_VISIBLE_DEV"):
        own_gpu(rank(local, of), visible)
