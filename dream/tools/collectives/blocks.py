"""How it is timed: contenders take turns, in an order drawn afresh each round."""

from __future__ import annotations

import random
from collections.abc import Mapping
from time import perf_counter

from dream.collectives import Communicator
from dream.tools.collectives.calls import Call

_BLOCK_SECONDS = 0.02
_MOST_CALLS = 200


def calls_in_block(contenders: Mapping[str, Call], ranks: Communicator) -> dict[str, int]:
    """So many that a block is long enough to be read, the same number on every rank."""
    found = {}
    for name, call in contenders.items():
        call()  # what is made on first use
        slowest = max(ranks.all_gather_object(_block(call, 1, ranks)))
        found[name] = max(1, min(_MOST_CALLS, int(_BLOCK_SECONDS / slowest)))
    return found


def read(
    contenders: Mapping[str, Call], calls: Mapping[str, int], rounds: int, ranks: Communicator
) -> dict[str, list[float]]:
    """Seconds of one call on the slowest rank, one figure a round."""
    draw = random.Random(0)
    own: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name in draw.sample(list(contenders), len(contenders)):
            own[name].append(_block(contenders[name], calls[name], ranks))
    everywhere = ranks.all_gather_object(own)
    return {
        name: [max(taken) for taken in zip(*(each[name] for each in everywhere), strict=True)]
        for name in contenders
    }


def _block(call: Call, calls: int, ranks: Communicator) -> float:
    """Seconds of one call, among several that all ranks begin together."""
    ranks.barrier()
    begin = perf_counter()
    for _ in range(calls):
        call()
    return (perf_counter() - begin) / calls
