"""DDP's buckets over shared memory."""

from __future__ import annotations

import pytest
import torch
import torch_shared

import dream
from dream.shared_memory import status

pytestmark = pytest.mark.skipif(status().path is None, reason=status().why)


@pytest.mark.parametrize("ranks", [2, 3])
def test_gradients_are_those_of_one_device(ranks: int) -> None:
    found = dream.launch(torch_shared.both, n=ranks, framework="torch", timeout=500)
    first = found[0][0]
    assert first["shared"].abs().max() > 0.01
    for gradients, refusal in found:
        assert torch.equal(gradients["shared"], first["shared"])
        for other in ("alone", "gloo"):
            assert (gradients["shared"] - gradients[other]).abs().max() < 1e-6
        assert "Received: torch.int8" in refusal
