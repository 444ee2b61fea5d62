"""What a script tells its own batch sampler through the loader reaches it."""

from __future__ import annotations

import own_batch_sampler
import pytest

import dream


def test_a_batch_sampler_is_told_the_epoch_and_the_batch_size() -> None:
    losses, lengths = own_batch_sampler.trained(plain=True)
    assert lengths == [7, 7, 7, 5]
    for found in dream.launch(own_batch_sampler.trained, n=2, framework="torch", plain=False):
        assert found[0] == pytest.approx(losses, abs=1e-6)
        assert found[1] == lengths
