"""Scripts that distribute themselves, and what was made before the block: at 2 and 3 ranks, held
against the plain script on one device."""

from __future__ import annotations

from functools import cache
from typing import Any

import foreign_scripts
import numpy as np
import pytest

import dream

pytestmark = pytest.mark.slow

RANKS = (2, pytest.param(3, marks=pytest.mark.exhaustive))


@cache
def results(ranks: int) -> list[dict[str, Any]]:
    return dream.launch(
        foreign_scripts.run_all, ranks == 1, n=ranks, framework="torch", timeout=500
    )


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("script", foreign_scripts.SCRIPTS)
def test_a_script_ends_as_without_dream(script: str, ranks: int) -> None:
    alone, together = results(1)[0][script], [rank[script] for rank in results(ranks)]
    for found in (alone, *together):
        assert not isinstance(found, str), found
    assert np.abs(alone - together[0]).max() < 2e-6
    for other in together[1:]:
        np.testing.assert_array_equal(together[0], other)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("wrong_group", "ConfigurationError: This job's process group already exists"),
        ("uneven_by_hand", "Unsupported: In the block DistributedDataParallel leaves the work"),
        ("sharded_by_hand", "Unsupported: FullyShardedDataParallel distributes training"),
        ("part_of_a_world", "Unsupported: This loader divides the data among the ranks"),
        ("wrapped_before_the_block", "Unsupported: A wrapper that reduces gradients was put"),
        ("made_before_and_divided", "Unsupported: Under 'local_sgd' a model is divided"),
    ],
)
def test_what_is_not_done_is_refused(fault: str, said: str, ranks: int) -> None:
    for rank in results(ranks):
        assert rank[fault].startswith(said), rank[fault]
