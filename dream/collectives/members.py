"""Know who is in a group, and how its ranks reach one another: by a page where they share a host's
memory, else by a mesh of connections."""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from dream import cluster
from dream._errors import ConfigurationError
from dream._topology import Cluster
from dream.collectives.board import Board, ConnectedBoard
from dream.collectives.links import Links, links_of
from dream.collectives.page import Page, words_needed


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


_TOKEN = 16


@cache
def board_of(place: Cluster, ranks: tuple[int, ...], name: str) -> Board:
    """The group's board, one a process and group: its count of calls goes on from block to
    block. Every rank of the group calls it."""
    page = _page(place, ranks, name) if _one_host(place, ranks) else None
    return page or ConnectedBoard(links_of(place), ranks, name)


def _one_host(place: Cluster, ranks: Sequence[int]) -> bool:
    nodes = {place.node_of(rank) for rank in ranks}
    return len(nodes) == 1 and hasattr(os, "memfd_create")


def _page(place: Cluster, ranks: Sequence[int], name: str) -> Page | None:
    """None, on all alike, where one of them cannot reach the first one's memory."""
    mine = ranks.index(place.rank)
    size = words_needed(len(ranks)) * 8 + _TOKEN
    made = _make(size) if mine == 0 else None
    told = cluster.exchange(place, f"page-{name}", _introduction(made), ranks)
    pids, (first, *_) = [int(said.split()[0]) for said in told], told
    memory = made[1] if made else _open(first, size)
    opened = cluster.exchange(place, f"paged-{name}", b"yes" if memory else b"no", ranks)
    if made:
        os.close(made[0])  # all have mapped it, or nobody will
    if memory is None or any(said != b"yes" for said in opened):
        return None
    return Page(memory, ranks, mine, pids, cluster.stall_seconds())


def _introduction(made: tuple[int, mmap.mmap, bytes] | None) -> bytes:
    words = [str(os.getpid())]
    if made is not None:
        words += [str(made[0]), made[2].hex()]
    return " ".join(words).encode()


def _make(size: int) -> tuple[int, mmap.mmap, bytes]:
    """Memory without a name in any folder: nothing is left of it, whoever dies."""
    file = os.memfd_create("dream-page")
    os.fchmod(file, 0o600)
    os.ftruncate(file, size)
    memory = mmap.mmap(file, size)
    token = secrets.token_bytes(_TOKEN)
    memory[-_TOKEN:] = token
    return file, memory, token


def _open(introduction: bytes, size: int) -> mmap.mmap | None:
    pid, file, token = introduction.decode().split()
    try:
        with Path(f"/proc/{pid}/fd/{file}").open("r+b") as shared:
            memory = mmap.mmap(shared.fileno(), size)
    except (OSError, ValueError):
        return None
    return memory if memory[-_TOKEN:] == bytes.fromhex(token) else None
