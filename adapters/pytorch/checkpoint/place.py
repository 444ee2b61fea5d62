"""Where an untouched training stood when it was saved: its pass, its loop, its variables."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

from dream.adapters.pytorch.checkpoint.variables import Changed, Told
from dream.collectives import Communicator


@final
@dataclass(frozen=True, slots=True)
class Place:
    """loader: its number among those of the block. passes: over it, before the one that is gone on
    with. site: of the loop in the script. index: what an `enumerate` around the loader gives next;
    None for none. told, given: see `Changed`. history: as each pass began, what numbers and words
    among the variables were. unalike: names of those that a rank has for itself. ranks: that
    trained."""

    loader: int
    passes: int
    site: Sequence[Sequence[Any]]
    index: int | None
    told: Told
    given: Told
    history: Sequence[Told]
    unalike: Sequence[str]
    ranks: int

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Self:
        return cls(**kept)

    @property
    def variables(self) -> Told:
        return {**self.told, **self.given}


def agreed_place(
    ranks: Communicator, changed: Changed, history: Sequence[Told], **where: Any
) -> dict[str, Any]:
    """Return a place as plain values, with those variables that are alike on all ranks. Every rank
    calls it."""
    said = [changed.told, changed.given, *history]
    digests = [{key: zlib.crc32(repr(value).encode()) for key, value in each.items()}
               for each in said]  # fmt: skip
    of_all = ranks.all_gather_object(digests)
    alike = [
        {key: value for key, value in each.items()
         if all(other[i].get(key) == digests[i][key] for other in of_all)}
        for i, each in enumerate(said)
    ]  # fmt: skip
    told, given, *before = alike
    own = [key for key in changed.told.keys() - told.keys() if changed.told[key][0] != "tensor"]
    return {
        **where, "told": told, "given": given, "history": before, "ranks": ranks.world_size,
        "unalike": sorted({name for _, name in own}),
    }  # fmt: skip
