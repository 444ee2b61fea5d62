"""Gradients that travel in half precision: half the bytes, two roundings, added up in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from dream.adapters.pytorch.compression.exchange import Exchange
from dream.collectives import Wire


@final
class Rounded(Exchange):
    """Each rank gets its chunk of everybody's gradients, rounded; adds it up in float32; and sends
    the rounded mean to all. Error: two roundings of each element, however many ranks.

    A wire moves int32, so two elements are one.
    """

    def __init__(self, wire: Wire, world_size: int, dtype: torch.dtype) -> None:
        self._wire, self._world_size, self._dtype = wire, world_size, dtype

    def takes(self, gradient: torch.Tensor) -> bool:
        return True

    def __call__(
        self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        ranks = self._world_size
        length = sum(g.numel() for g in gradients)
        chunk = 2 * -(-length // (2 * ranks))
        sent = gradients[0].new_zeros(ranks * chunk, dtype=self._dtype)
        torch.cat([g.reshape(-1).to(self._dtype) for g in gradients], out=sent[:length])
        pairs = [chunk // 2] * ranks
        came = self._wire.all_to_all(sent.view(torch.int32), pairs, pairs)
        summed = came.view(self._dtype).view(ranks, chunk).float().sum(dim=0)
        mean = summed.div_(ranks).to(self._dtype)
        whole = self._wire.all_gather(mean.view(torch.int32)).view(self._dtype)
        parts = whole[:length].split([g.numel() for g in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
