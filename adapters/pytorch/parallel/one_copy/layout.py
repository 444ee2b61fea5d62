"""Where parameters lie in memory that ranks share, and which part of it is whose."""

from __future__ import annotations

from collections.abc import Sequence
from mmap import mmap
from typing import final

import torch
from torch import nn

_GRAIN = 512
"""Bytes. Parameters begin, and parts end, at multiples: a vector of the processor's is never cut,
so the kernels of a part round as those of the whole do."""


@final
class Layout:
    """Parameters of one dtype one after the other, cut in as many equal parts as there are ranks.

    length: elements of all of it. share: of each part. first: this rank's begins there.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], ranks: int, rank: int) -> None:
        self.parameters, self.dtype = tuple(parameters), parameters[0].dtype
        self._strides = [_strides(parameter) for parameter in parameters]
        self.item = parameters[0].element_size()
        grain = _GRAIN // self.item
        self._starts, end = [], 0
        for parameter in parameters:
            self._starts.append(end)
            end += _up(parameter.numel(), grain)
        self.share = _up(-(-end // ranks), grain)
        self.length, self.first = self.share * ranks, self.share * rank
        self.bytes = self.length * self.item

    def own(self, place: int) -> tuple[int, int]:
        """Which elements of a parameter are in this rank's part: from, to."""
        start, count = self._starts[place], self.parameters[place].numel()
        edges = (self.first - start, self.first + self.share - start)
        begin, end = (min(max(edge, 0), count) for edge in edges)
        return begin, end

    def whole(self, memory: mmap | torch.Tensor, place: int) -> torch.Tensor:
        """A parameter's place in memory that is laid out so, in the parameter's shape."""
        flat = self._taken(memory, place, 0, self.parameters[place].numel())
        return flat.as_strided(self.parameters[place].shape, self._strides[place])

    def piece(self, memory: mmap | torch.Tensor, place: int) -> torch.Tensor:
        """The part of it that is this rank's, flat; it may be empty."""
        return self._taken(memory, place, *self.own(place))

    def cut(self, value: torch.Tensor, place: int) -> torch.Tensor:
        """This rank's part of a tensor of the parameter's shape, copied."""
        like = self.parameters[place]
        dense = torch.empty_strided(like.shape, self._strides[place], dtype=value.dtype)
        dense.copy_(value)
        begin, end = self.own(place)
        return dense.as_strided((like.numel(),), (1,))[begin:end].clone()

    def _taken(self, memory: mmap | torch.Tensor, place: int, begin: int, end: int) -> torch.Tensor:
        """In the ranks' memory each has a storage of its own: a file of one layer's weights has
        not the whole model in it."""
        start = self._starts[place] + begin
        if isinstance(memory, torch.Tensor):
            return memory[start : start + end - begin]
        if begin == end:
            return torch.empty(0, dtype=self.dtype)
        return torch.frombuffer(
            memory, dtype=self.dtype, count=end - begin, offset=start * self.item
        )


def layouts(parameters: Sequence[nn.Parameter], ranks: int, rank: int) -> list[Layout]:
    """One for each dtype, in the order in which they come."""
    by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        by_dtype.setdefault(parameter.dtype, []).append(parameter)
    return [Layout(alike, ranks, rank) for alike in by_dtype.values()]


def _strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """The parameter's own where it has no gaps, as in channels_last."""
    if parameter.dim() == 4 and parameter.is_contiguous(memory_format=torch.channels_last):
        return parameter.stride()
    return torch.empty(parameter.shape, device="meta").stride()


def _up(count: int, grain: int) -> int:
    return -(-count // grain) * grain
