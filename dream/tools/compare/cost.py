"""What a step has to send, by the book.

N is the bytes of all gradients, P the ranks; what each rank sends at least. All-reduce: P.
Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dream import _spec
from dream.tools.compare.cells import Cell


@dataclass(frozen=True, slots=True)
class Formula:
    """text: for people; sent: (N, P) -> bytes."""

    text: str
    sent: Callable[[int, int], float]


def _all_reduces(text: str, times: float) -> Formula:
    return Formula(text, lambda size, ranks: times * 2 * size * (ranks - 1) / ranks)


_EXACT = _all_reduces("2N(P-1)/P", 1)
_SHARDED = {1: _all_reduces("3N(P-1)/P", 1.5), 2: _EXACT, 3: _all_reduces("3N(P-1)/P", 1.5)}
"""1: gradients are added up everywhere, and what each stepped is gathered. 2, 3: parameters are
gathered, for 3 once more on the way back, and gradients scattered."""
_TOLD = ("zero", "data", "every")
UNSEEN = ("shared_memory", "in process")
"""Reductions whose bytes are in no socket."""


def formula(cell: Cell) -> Formula | None:
    """None where nothing is sent, or what is sent does not depend on N and P alone: strategies that
    split the model send what its layers yield."""
    if cell.processes == 1 or cell.splits:
        return None
    given = _spec.parse_request(cell.strategy)[1]
    options = _spec.find(cell.name).resolve({k: v for k, v in given.items() if k in _TOLD})
    match cell.name:
        case "sharded":
            return None if options["data"] not in (None, 1) else _SHARDED[int(str(options["zero"]))]
        case "local_sgd":
            every = int(str(options["every"]))
            return _EXACT if every == 1 else _all_reduces(f"2N(P-1)/P/{every}", 1 / every)
        case "parameter_server":
            return Formula("N", lambda size, _: float(size))
        case _:
            return _EXACT
