"""Who is in a group, and what its ranks reach one another by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dream._errors import ConfigurationError
from dream._topology import Cluster
from dream.collectives.board import Board
from dream.collectives.links import Links, links_of
from dream.collectives.meeting import board_of


@dataclass(frozen=True)
class Members:
    """Some ranks of a job, this one among them.

    ranks: as the job numbers them; a rank's place in here is its number in the group.
    name: the same on all of them and of no other group.
    """

    cluster: Cluster
    ranks: tuple[int, ...]
    name: str = "all"

    @classmethod
    def all_of(cls, cluster: Cluster) -> Members:
        return cls(cluster, tuple(range(cluster.world_size)))

    @property
    def rank(self) -> int:
        return self.ranks.index(self.cluster.rank)

    @property
    def size(self) -> int:
        return len(self.ranks)

    @cached_property
    def board(self) -> Board:
        """Where they agree. The first use is a meeting of all of them."""
        return board_of(self.cluster, self.ranks, self.name)

    @cached_property
    def links(self) -> Links:
        """What goes from one rank of the job to another."""
        return links_of(self.cluster)

    def some(self, ranks: Sequence[int], name: str) -> Members:
        """Those at these places, in this order."""
        return Members(self.cluster, tuple(self.ranks[rank] for rank in ranks), name)

    def check(self, rank: int, what: str) -> None:
        """Refuse a number that is no rank of the group."""
        if not isinstance(rank, int) or not 0 <= rank < self.size:
            raise ConfigurationError(
                f"No such rank. Received: {what}={rank!r}, world size {self.size}. Use 0 to "
                f"{self.size - 1}."
            )
