"""PowerSGD (Vogels, Karimireddy, Jaggi 2019): a gradient travels as two thin matrices, and what
they miss is added to the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from dream.adapters.pytorch.compression.exchange import Exchange
from dream.adapters.pytorch.compression.hook import write
from dream.collectives import Wire


@final
class LowRank(Exchange):
    """A gradient as a matrix M of shape (n, m): P = M Q and Q = M' P, both added up over the ranks,
    give P Q', of rank `rank`. Q starts as the last step's.

    Sent for each: rank * (n + m) floats instead of n * m; where that saves nothing, it is left.
    """

    def __init__(self, wire: Wire, world_size: int, rank: int) -> None:
        self._wire, self._world_size, self._rank = wire, world_size, rank
        self._missed: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._right: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def takes(self, gradient: torch.Tensor) -> bool:
        if gradient.dim() < 2:
            return False
        rows, columns = gradient.shape[0], gradient[0].numel()
        return self._rank * (rows + columns) < rows * columns

    def __call__(
        self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        matrices = [self._with_missed(p, g) for p, g in zip(parameters, gradients, strict=True)]
        rights = [self._start(p, m) for p, m in zip(parameters, matrices, strict=True)]
        lefts = self._averaged([m @ q for m, q in zip(matrices, rights, strict=True)])
        lefts = [torch.linalg.qr(left).Q for left in lefts]
        rights = self._averaged([m.T @ p for m, p in zip(matrices, lefts, strict=True)])
        for parameter, gradient, matrix, left, right in zip(
            parameters, gradients, matrices, lefts, rights, strict=True
        ):
            found = left @ right.T
            self._missed[parameter] = matrix - found
            self._right[parameter] = right
            gradient.copy_(found.view_as(gradient))

    def _with_missed(self, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        matrix = gradient.float().reshape(len(gradient), -1)
        missed = self._missed.get(parameter)
        return matrix.clone() if missed is None else matrix + missed

    def _start(self, parameter: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        """Last step's; at first a draw that is the same on every rank."""
        right: torch.Tensor | None = self._right.get(parameter)
        if right is not None:
            return right
        generator = torch.Generator().manual_seed(matrix.numel())
        drawn = torch.randn(matrix.shape[1], self._rank, generator=generator)
        return drawn.to(matrix.device)

    def _averaged(self, factors: list[torch.Tensor]) -> list[torch.Tensor]:
        (total,) = self._wire.all_reduce([torch.cat([f.reshape(-1) for f in factors])], "sum")
        write(total.div_(self._world_size), factors)
        return factors
