"""Each rank's rows of a parameter: those that it steps, and keeps an optimizer's state for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from dream.collectives import Communicator


@final
class Rows:
    """Parameters cut along dim 0 into one run of rows a rank, the first ones no shorter.

    A parameter of no dim has no rows: every rank steps it.
    """

    def __init__(self, among: Communicator) -> None:
        self._among = among.unchecked()  # parameters are known to be alike

    @property
    def parts(self) -> int:
        return self._among.world_size

    def of(self, tensor: torch.Tensor, rank: int | None = None) -> torch.Tensor:
        """A view of a rank's rows; of this rank's by default."""
        if tensor.dim() == 0:
            return tensor
        rank = self._among.rank if rank is None else rank
        each = -(-len(tensor) // self.parts)
        return tensor[min(rank * each, len(tensor)) : (rank + 1) * each]

    def spread(self, tensors: Sequence[torch.Tensor]) -> None:
        """Every rank's rows of each tensor, on every rank, in place. One collective a dtype."""
        kinds = dict.fromkeys(tensor.dtype for tensor in tensors)
        for kind in kinds:
            self._spread([t for t in tensors if t.dtype == kind and t.dim() > 0])

    def _spread(self, tensors: Sequence[torch.Tensor]) -> None:
        if not tensors:
            return
        longest = sum(self.of(tensor, 0).numel() for tensor in tensors)
        own = torch.cat([self.of(tensor).reshape(-1) for tensor in tensors])
        padded = own.new_zeros(longest)
        padded[: len(own)] = own
        every = self._among.all_gather(padded).view(self.parts, longest)
        for rank, row in enumerate(every):
            begin = 0
            for tensor in tensors:
                place = self.of(tensor, rank)
                place.copy_(row[begin : begin + place.numel()].view(place.shape))
                begin += place.numel()
