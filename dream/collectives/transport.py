"""Carry flat buffers between ranks: every transport, a rank alone, hosts in two levels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, final

Tensor = Any
"""A tensor of the caller's kind: torch.Tensor, tf.Tensor or numpy.ndarray."""

Native = Any
"""A tensor of the framework that the wire belongs to."""

Length = Any
"""A count of elements: an int, or in a graph an integer tensor of shape ()."""

Op = Literal["sum", "mean", "min", "max", "product"]
Combine = Literal["sum", "min", "max", "product"]
OPS: tuple[Op, ...] = ("sum", "mean", "min", "max", "product")


class Wire(ABC):
    """A transport between the ranks of one group.

    Buffers are native tensors of shape (n,), contiguous, and the caller's no more: a wire may
    overwrite them. What is added up is float32, float64, int32 or int64; what only moves is
    int32. Ranks are the group's own, from 0.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """As `reduction=` spells it."""

    @abstractmethod
    def all_reduce(self, buffers: list[Native], op: Combine) -> list[Native]:
        """Each buffer combined over the ranks. Alike on every rank."""

    @abstractmethod
    def broadcast(self, buffers: list[Native], root: int) -> list[Native]:
        """`root`'s buffers. Alike on every rank."""

    @abstractmethod
    def all_gather(self, buffer: Native) -> Native:
        """Every rank's n elements end to end: (ranks * n,). The same n on every rank."""

    @abstractmethod
    def all_to_all(
        self, buffer: Native, sends: Sequence[Length], receives: Sequence[Length]
    ) -> Native:
        """The first sends[0] elements go to rank 0, the next to rank 1, and so on; what came
        from rank 0 comes first, receives[0] elements of it."""

    @abstractmethod
    def group(self, ranks: Sequence[int]) -> Wire | None:
        """The wire of some of the ranks; None on the others. All ranks call it."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the transport. Idempotent."""


@final
class Loop(Wire):
    """The wire of a rank alone: whatever goes round comes back as it was."""

    @property
    def name(self) -> str:
        return "auto"

    def all_reduce(self, buffers: list[Native], op: Combine) -> list[Native]:
        del op
        return buffers

    def broadcast(self, buffers: list[Native], root: int) -> list[Native]:
        del root
        return buffers

    def all_gather(self, buffer: Native) -> Native:
        return buffer

    def all_to_all(
        self, buffer: Native, sends: Sequence[Length], receives: Sequence[Length]
    ) -> Native:
        del sends, receives
        return buffer

    def group(self, ranks: Sequence[int]) -> Wire | None:
        return self if ranks else None

    def close(self) -> None:
        return None


@final
class Hierarchical(Wire):
    """A host's first rank is its leader.

    Between hosts an all_reduce of N bytes sends 2N(H-1)/H from each of H hosts, however many
    ranks they have; a broadcast at most N(H-1) from root's. The other collectives go by the wire
    of all ranks.

    inside: this host's ranks; its broadcast takes whatever it adds up. between: the leaders, in
    host order; None on other ranks. everybody: all ranks. hosts: each one's ranks.
    """

    def __init__(
        self, inside: Wire, between: Wire | None, everybody: Wire, hosts: Sequence[Sequence[int]]
    ) -> None:
        self._inside, self._between, self._everybody = inside, between, everybody
        self._places = {
            rank: (host, place)
            for host, ranks in enumerate(hosts)
            for place, rank in enumerate(ranks)
        }

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
        host, place = self._places[root]
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
