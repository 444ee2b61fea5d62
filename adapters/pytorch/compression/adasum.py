"""Adasum, as `dream.update.compression` says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from dream.adapters.pytorch.compression.exchange import Exchange
from dream.adapters.pytorch.compression.hook import write
from dream.collectives import Communicator
from dream.update.compression import TINY, check_ranks


@final
class Adasum(Exchange):
    """On the communicator's sends and receives. Sent: the gradient, log2(ranks) times."""

    def __init__(self, communicator: Communicator) -> None:
        check_ranks(communicator.world_size)
        self._communicator = communicator

    def takes(self, gradient: torch.Tensor) -> bool:
        return True

    def __call__(
        self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        own = [g.reshape(-1).float().clone() for g in gradients]
        distance = 1
        while distance < self._communicator.world_size:
            own = self._met(own, self._communicator.rank ^ distance)
            distance *= 2
        write(torch.cat(own), list(gradients))

    def _met(self, own: list[torch.Tensor], peer: int) -> list[torch.Tensor]:
        """The pair's, reckoned alike on both sides."""
        flat = torch.cat(own)
        if self._communicator.rank < peer:
            self._communicator.send(flat, to=peer)
            theirs = self._communicator.receive(peer, like=flat)
        else:
            theirs = self._communicator.receive(peer, like=flat)
            self._communicator.send(flat, to=peer)
        others = theirs.split([len(part) for part in own])
        pairs = [(own, others), (others, own)][self._communicator.rank > peer]
        return [adasum(a, b) for a, b in zip(*pairs, strict=True)]


def adasum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Of two gradients of one parameter; products are summed in float64."""
    wide_a, wide_b = a.double(), b.double()
    dot, of_a, of_b = float(wide_a @ wide_b), float(wide_a @ wide_a), float(wide_b @ wide_b)
    share_a = 1.0 - dot / (2.0 * of_a) if of_a >= TINY else 1.0
    share_b = 1.0 - dot / (2.0 * of_b) if of_b >= TINY else 1.0
    return (wide_a * share_a + wide_b * share_b).to(a.dtype)
