"""Two levels: at memory speed inside a host, and one rank of each host between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from dream.collectives.wire import Combine, Length, Native, Wire


@final
class Hierarchical(Wire):
    """Every host has as many ranks, numbered host by host; a host's first is its leader.

    Between hosts an all_reduce of N bytes sends 2N(H-1)/H from each of H hosts, however many
    ranks they have; a broadcast at most N(H-1) from root's. The other collectives go by the wire
    of all ranks.

    inside: this host's ranks; its broadcast takes whatever it adds up. between: the leaders, in
    host order; None on other ranks. everybody: all ranks.
    """

    def __init__(self, inside: Wire, between: Wire | None, everybody: Wire, local: int) -> None:
        self._inside, self._between, self._everybody = inside, between, everybody
        self._local = local

    @property
    def name(self) -> str:
        return "hierarchical"

    def all_reduce(self, buffers: list[Native], op: Combine) -> list[Native]:
        buffers = self._inside.all_reduce(buffers, op)
        if self._between is not None:
            buffers = self._between.all_reduce(buffers, op)
        return self._inside.broadcast(buffers, 0)

    def broadcast(self, buffers: list[Native], root: int) -> list[Native]:
        """root's host takes part in its own broadcast twice: the leader may not be root."""
        host, place = divmod(root, self._local)
        if place:
            buffers = self._inside.broadcast(buffers, place)
        if self._between is not None:
            buffers = self._between.broadcast(buffers, host)
        return self._inside.broadcast(buffers, 0)

    def all_gather(self, buffer: Native) -> Native:
        return self._everybody.all_gather(buffer)

    def all_to_all(
        self, buffer: Native, sends: Sequence[Length], receives: Sequence[Length]
    ) -> Native:
        return self._everybody.all_to_all(buffer, sends, receives)

    def group(self, ranks: Sequence[int]) -> Wire | None:
        """On the wire of all ranks: a part of the hosts' ranks has no leaders of its own."""
        return self._everybody.group(ranks)

    def close(self) -> None:
        self._everybody.close()
