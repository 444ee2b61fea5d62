"""What a loss is multiplied by, and is learned."""

from __future__ import annotations

import learned_weights
import pytest
import torch

import dream


@pytest.mark.parametrize("form", ["stacked", "added", "counted"])
def test_a_rank_without_a_row_has_its_part_in_a_penalty_on_learned_weights(form: str) -> None:
    """A mean over no row is nan, which times a factor of 0 is no reason to drop what else the
    weights' gradient is made of."""
    plain = learned_weights.train("", form)
    found = dream.launch(learned_weights.train, "mirrored", form, n=2, framework="torch")
    for made in found:
        for one, other in zip(plain, made, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
