"""Top-k with error feedback (Stich, Cordonnier, Jaggi 2018): only a gradient's largest elements
travel; what stays behind is added to the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from dream.adapters.pytorch.compression.exchange import Exchange
from dream.collectives import Wire
from dream.update.compression import Compression


@final
class Largest(Exchange):
    """Each rank sends places and values of a fraction of each parameter's elements, one at least,
    and all add up all. Sent: 8 bytes for each of those, to every other rank."""

    def __init__(self, wire: Wire, world_size: int, asked: Compression) -> None:
        self._wire, self._world_size, self._asked = wire, world_size, asked
        self._kept: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def takes(self, gradient: torch.Tensor) -> bool:
        return True

    def __call__(
        self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        wholes = [self._with_kept(p, g) for p, g in zip(parameters, gradients, strict=True)]
        chosen = [self._choose(p, w) for p, w in zip(parameters, wholes, strict=True)]
        places = torch.cat([place for place, _ in chosen]).to(torch.int32)
        values = torch.cat([value for _, value in chosen])
        came = self._wire.all_gather(torch.cat([places, values.view(torch.int32)]))
        of_ranks = came.view(self._world_size, 2, -1)
        counts = [len(place) for place, _ in chosen]
        for gradient, place, value in zip(
            gradients,
            of_ranks[:, 0].split(counts, dim=1),
            of_ranks[:, 1].split(counts, dim=1),
            strict=True,
        ):
            total = torch.zeros(gradient.numel(), device=gradient.device)
            for rank in range(self._world_size):
                total.index_add_(0, place[rank].long(), value[rank].contiguous().view(torch.float))
            gradient.copy_(total.div_(self._world_size).view_as(gradient))

    def _with_kept(self, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        flat = gradient.float().reshape(-1)
        kept = self._kept.get(parameter)
        return flat.clone() if kept is None else flat + kept

    def _choose(
        self, parameter: torch.Tensor, whole: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(places, values) of the largest; the rest is kept for the next step."""
        count = self._asked.elements(len(whole))
        places = whole.abs().topk(count, sorted=False).indices
        values = whole[places]
        self._kept[parameter] = whole.index_fill(0, places, 0.0)
        return places, values
