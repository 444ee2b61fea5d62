"""Commits where each host has memory of its own: every host keeps a whole one, and one that has
none, or an older one, gets the newest from a host that has it."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from dream import cluster
from dream._errors import DreamError
from dream._log import logger
from dream.checkpoint.storage.folder import STATE, CheckpointFolder, order
from dream.collectives import Communicator
from dream.files.room import check_room

_PIECE = 16 << 20
"""Bytes that travel at a time."""
_NO_ROOM = "step %d, which a host keeps in memory, is not gone on from: %s"
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Kept:
    """The newest commit of a host. place: its name and order: by its steps. digest: of its state,
    equal where it is the same one. size: in bytes."""

    order: tuple[int, int]
    place: str
    digest: str
    size: int


def leaders(ranks: Communicator) -> tuple[int, ...]:
    """Return the first rank of each host; none where these are not all ranks of several hosts,
    which then cannot keep whole ones."""
    place = cluster.detect()
    if place.one_host:
        return (0,)
    if ranks.world_size != place.world_size:
        return ()
    return tuple(place.ranks_on(node)[0] for node in range(len(place.hosts)))


def newest(folder: CheckpointFolder | None) -> Kept | None:
    """Return what this host has."""
    place = None if folder is None else folder.newest()
    if place is None:
        return None
    size = sum(file.stat().st_size for file in place.iterdir())
    return Kept(order(place), place.name, digest(place), size)


def digest(place: Path) -> str:
    try:
        return hashlib.sha256((place / STATE).read_bytes()).hexdigest()
    except OSError:
        return ""


@final
class HostMemory:
    """What all hosts of a job have in memory. Every rank calls each method."""

    def __init__(self, ranks: Communicator, folder: CheckpointFolder | None, first: int) -> None:
        """folder: this host's. first: the first of its ranks."""
        self._ranks, self._folder, self._first = ranks, folder, first
        self._every: list[Kept | None] = []

    def newest(self) -> Kept | None:
        """Return the newest that any host has, and that every host has room for."""
        own = newest(self._folder)
        told = self._ranks.all_gather_object(own and astuple(own))
        self._every = [Kept(tuple(each[0]), *each[1:]) if each else None for each in told]
        there = [each for each in self._every if each is not None]
        found = max(there, key=lambda each: each.order, default=None)
        if found is None:
            return None
        lacks = [each for each in self._ranks.all_gather_object(self._lack(found)) if each]
        if lacks and self._ranks.rank == 0:
            logger.info(_NO_ROOM, found.order[0], lacks[0])
        return None if lacks else found

    def bring(self, kept: Kept) -> None:
        """Have it on every host, as its newest. DreamError where one could not write it."""
        if all(self._has(each, kept) for each in self._every):
            return
        holder = next(rank for rank, each in enumerate(self._every) if self._has(each, kept))
        own = self._every[self._ranks.rank]
        writes = self._ranks.rank == self._first and not self._has(own, kept)
        wrong = ""
        pieces = self._pieces(kept, holder)
        try:
            if writes:
                self._write(kept, pieces)
        except (OSError, DreamError) as error:
            wrong = f"rank {self._ranks.rank}: {error}"
        for _ in pieces:
            pass  # all of them travel, whoever keeps them
        for said in self._ranks.all_gather_object(wrong):
            if said:
                raise DreamError(
                    "A host's in-memory snapshot could not be copied to another host. Received: "
                    f"{kept.place}, {said}. Give that host more memory, or --commit-every 0."
                )

    @staticmethod
    def _has(own: Kept | None, kept: Kept) -> bool:
        return own is not None and own.digest == kept.digest

    def _lack(self, kept: Kept) -> str:
        if self._has(self._every[self._ranks.rank], kept):
            return ""
        if self._folder is None:
            return "no folder"
        try:
            check_room(self._folder.path, kept.size)
        except DreamError as error:
            return str(error)
        return ""

    def _pieces(self, kept: Kept, holder: int) -> Iterator[tuple[str, NDArray[np.uint8]]]:
        """Yield every file's name and bytes, some at a time, as the rank that has them sends
        them."""
        sends = self._ranks.rank == holder
        place = self._folder.path / kept.place if self._folder is not None else Path(os.devnull)
        files = [(f.name, f.stat().st_size) for f in sorted(place.iterdir())] if sends else []
        for name, size in self._ranks.broadcast_object(files, holder):
            for begin in range(0, max(size, 1), _PIECE):
                count = min(_PIECE, size - begin)
                piece = (
                    np.fromfile(place / name, np.uint8, count, offset=begin)
                    if sends
                    else np.empty(count, np.uint8)
                )
                yield name, self._ranks.broadcast(piece, holder)

    def _write(self, kept: Kept, pieces: Iterator[tuple[str, NDArray[np.uint8]]]) -> None:
        assert self._folder is not None
        begun = self._folder.begin_alike(kept.order[0], next(_numbers))
        with self._folder.writing(begun):
            begun.part.mkdir()
            for name, piece in pieces:
                with (begun.part / name).open("ab") as file:
                    file.write(piece.data)
            begun.part.rename(begun.place)
