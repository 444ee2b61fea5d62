"""Batches that are padded only later on."""

from __future__ import annotations

import padded_later
import torch

import dream


def test_padding_is_the_global_batchs_though_the_first_ones_need_none() -> None:
    plain = padded_later.train("")
    for made in dream.launch(padded_later.train, "mirrored", n=2, framework="torch", timeout=200):
        for one, other in zip(plain, made, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
