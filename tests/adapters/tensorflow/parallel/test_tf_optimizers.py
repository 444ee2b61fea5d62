"""Optimizers of Keras models in parts, on ranks: scaled losses, AdamW."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from split_launching import found
from test_tf_mesh import close

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return found("split_optimizers", "ranks", 2)


def test_a_scaled_loss_is_clipped_by_its_own_norm(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        close(rank["scaled"], rank["one scaled"])


@pytest.mark.parametrize("name", ["sharded", "tensor", "pipeline"])
def test_adamw_is_within_one_devices_own_noise(name: str) -> None:
    """Where a gradient is small, AdamW makes much of the last bits of a sum: one device that sums
    each batch in parts lies as far from itself."""
    for rank in found("split_optimizers", "stages" if name == "pipeline" else "ranks", 2):
        for ours, one, *parts in zip(rank[name], rank["one"], *rank["in parts"], strict=True):
            noise = max(float(np.abs(part - one).max()) for part in parts)
            apart = float(np.abs(ours - one).max())
            assert apart <= max(1e-6, 3 * noise), (ours.shape, apart, noise)


def test_adamws_state_is_in_parts(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        held, whole = rank["states"]
        assert held == [whole / 2]
