"""Batches whose rows nobody can tell apart."""

from __future__ import annotations

import neighbours
import torch

import dream


def test_what_a_collate_function_draws_for_rows_that_cannot_be_told_apart_is_one_devices() -> None:
    plain = neighbours.train("")
    for made in dream.launch(neighbours.train, "mirrored", n=2, framework="torch", timeout=200):
        for one, other in zip(plain, made, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
