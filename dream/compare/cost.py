"""What a step has to send, by the book.

N is the bytes of all gradients, P the ranks; what each rank sends at least. All-reduce: P.
Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dream.compare.cells import Cell


@dataclass(frozen=True, slots=True)
class Formula:
    """text: for people; sent: (N, P) -> bytes."""

    text: str
    sent: Callable[[int, int], float]


_ALL_REDUCE = Formula("2N(P-1)/P", lambda size, ranks: 2 * size * (ranks - 1) / ranks)
FORMULAS: Mapping[str, Formula] = {
    "mirrored": _ALL_REDUCE,
    "multi_worker_mirrored": _ALL_REDUCE,
    "horovod": _ALL_REDUCE,
    "sharded": Formula("3N(P-1)/P", lambda size, ranks: 3 * size * (ranks - 1) / ranks),
}
"""By strategy. Sharded: all parameters are gathered for the forward and for the backward pass,
and the gradients scattered. Strategies that split the model send what its layers yield."""
UNSEEN = ("shared_memory", "in process")
"""Reductions whose bytes are in no socket."""


def formula(cell: Cell) -> Formula | None:
    """None where nothing is sent, or what is sent does not hang on N alone."""
    return FORMULAS.get(cell.name) if cell.processes > 1 else None
