"""Which rank writes which arrays of a checkpoint, and in which file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, final

from dream.checkpoint.content import Arrays


class Wanted(Protocol):
    """Whether this rank writes an array of that name and so many bytes; each rank asks for each
    array of a model, in one order. owner: the rank that alone has it, and writes it."""

    def __call__(self, name: str, size: int, owner: int | None = None, /) -> bool: ...


LARGEST = 5 << 30
"""Bytes of a file: other readers expect no larger ones."""
LEAST = 32 << 20
"""Bytes that the ranks which write have each, before one more of them does."""


def every_array(name: str, size: int, owner: int | None = None) -> bool:
    """Want all."""
    del name, size, owner
    return True


def no_array(name: str, size: int, owner: int | None = None) -> bool:
    """Want none: what is said beside the arrays is enough."""
    return not every_array(name, size, owner)


@dataclass(slots=True)
class _File:
    writer: int
    size: int = 0
    names: list[str] = field(default_factory=list)


@final
class Allotment:
    """Deals arrays out in the order in which every rank names them, so that all of them know who
    writes what: to the rank that has least, of those that write."""

    def __init__(
        self, rank: int = 0, ranks: int = 1, *, largest: int = LARGEST, least: int = LEAST
    ) -> None:
        self._rank, self._ranks = rank, ranks
        self._largest, self._least = largest, least
        self._loads = [0]
        self._files: dict[str, list[_File]] = {}
        self.owned = False
        """Whether there is an array that one rank alone has."""

    @property
    def writers(self) -> range:
        """Return the ranks that write; rank 0 does always."""
        files = (file for of_kind in self._files.values() for file in of_kind)
        return range(1 + max((file.writer for file in files), default=0))

    @property
    def size(self) -> int:
        """Return the bytes of all arrays, whoever writes them."""
        return sum(self._loads)

    def names(self, kinds: Sequence[str]) -> set[str]:
        """Return the names of all files, whoever writes them."""
        return {name for kind in kinds for name in self._names(kind) or [kind]}

    def takes(self, kind: str, name: str, size: int, owner: int | None = None) -> bool:
        """Deal out the next array; tell whether this rank writes it. kind: the file that it would
        be in if there were only one of its kind. owner: the rank that it must be."""
        if owner is not None:
            self.owned = True
            self._loads += [0] * (owner + 1 - len(self._loads))
        elif min(self._loads) >= self._least and len(self._loads) < self._ranks:
            self._loads.append(0)
        writer = self._loads.index(min(self._loads)) if owner is None else owner
        self._loads[writer] += size
        files = self._files.setdefault(kind, [])
        open_ones = [file for file in files if file.writer == writer]
        if not open_ones or open_ones[-1].size + size > self._largest:
            files.append(_File(writer))
            open_ones = files[-1:]
        open_ones[-1].size += size
        open_ones[-1].names.append(name)
        return writer == self._rank

    def own(self, kind: str, arrays: Arrays) -> Iterator[tuple[str, Arrays]]:
        """Yield this rank's files, with what each holds."""
        files = self._files.get(kind, [])
        if not files and self._rank == 0:
            yield kind, {}
        for name, file in zip(self._names(kind), files, strict=True):
            if file.writer == self._rank:
                yield name, {each: arrays[each] for each in file.names}

    def index(self, kind: str) -> tuple[int, dict[str, str]] | None:
        """Return the bytes of all arrays, and which file each is in; None where there is one."""
        files = self._files.get(kind, [])
        if len(files) < 2:
            return None
        where = {
            each: name
            for name, file in zip(self._names(kind), files, strict=True)
            for each in file.names
        }
        return sum(file.size for file in files), where

    def _names(self, kind: str) -> list[str]:
        count = len(self._files.get(kind, []))
        stem, _, suffix = kind.rpartition(".")
        if count < 2:
            return [kind] * count
        return [f"{stem}-{place:05d}-of-{count:05d}.{suffix}" for place in range(1, count + 1)]
