"""Time all cases over all transports, in every rank: contenders take turns, in an order drawn anew
each round.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import dream
from dream.collectives import Communicator
from dream.strategies import registry
from dream.tools import jobs
from dream.tools.collectives.figures import ELEMENT, MEMCPY, Reading, TimingSettings

Call = Callable[[], Any]
Make = Callable[[int], Any]
"""A tensor of so many elements."""


def operation_call(ranks: Communicator, name: str, elements: int, make: Make) -> Call:
    """elements: of the larger side, a multiple of the ranks."""
    share = elements // ranks.world_size
    if name == "scatter":
        part = make(share)
        parts = [make(share) for _ in range(ranks.world_size)] if ranks.rank == 0 else None
        return lambda: ranks.scatter(parts, like=part)
    x = make(share if name in ("all_gather", "gather") else elements)
    calls: dict[str, Call] = {
        "all_reduce": lambda: ranks.all_reduce(x, "sum"),
        "reduce": lambda: ranks.reduce(x, "sum"),
        "broadcast": lambda: ranks.broadcast(x),
        "all_gather": lambda: ranks.all_gather(x),
        "gather": lambda: ranks.gather(x),
        "reduce_scatter": lambda: ranks.reduce_scatter(x, "sum"),
        "all_to_all": lambda: ranks.all_to_all(x),
    }
    return calls[name]


def algorithm_call(ranks: Communicator, name: str, elements: int, make: Make) -> Call:
    x = make(elements)
    return lambda: ranks.all_reduce(x, "sum", algorithm=name)


def memcpy_call(elements: int) -> Call:
    import numpy as np

    source, target = np.ones(elements, np.float32), np.zeros(elements, np.float32)
    return lambda: np.copyto(target, source)


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


def read_seconds(
    contenders: Mapping[str, Call], calls: Mapping[str, int], rounds: int, ranks: Communicator
) -> dict[str, list[float]]:
    """Return the seconds of one call on the slowest rank, one figure a round."""
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
    """Return the seconds of one call, among several that all ranks begin together."""
    ranks.barrier()
    begin = perf_counter()
    for _ in range(calls):
        call()
    return (perf_counter() - begin) / calls


def main(folder: Path) -> None:
    """Measure what `folder` names; rank 0 writes down what all read."""
    said = jobs.read_asked(folder)
    settings, framework = TimingSettings(**said["settings"]), said["framework"]
    transports = {
        name: dream.communicator(name, framework=framework) for name in said["reductions"]
    }
    make = _maker(framework)
    read = [
        reading
        for operation in settings.operations
        for size in settings.sizes
        for reading in _case(operation, size, transports, settings, make)
    ]
    if next(iter(transports.values())).rank == 0:
        jobs.answer(folder, 0, [asdict(reading) for reading in read])


def _maker(framework: str) -> Make:
    import numpy as np

    tensors = registry.tensors(framework)
    return lambda elements: tensors.take(np.ones(elements, np.float32))


def _case(
    operation: str,
    size: int,
    transports: dict[str, Communicator],
    settings: TimingSettings,
    make: Make,
) -> list[Reading]:
    """One operation and size, over everything."""
    first = next(iter(transports.values()))
    elements = settings.elements(size)
    algorithms = settings.algorithms if operation == "all_reduce" else ()
    contenders: dict[str, Call] = {
        name: operation_call(ranks, operation, elements, make) for name, ranks in transports.items()
    }
    contenders |= {name: algorithm_call(first, name, elements, make) for name in algorithms}
    contenders[MEMCPY] = memcpy_call(elements)
    often = calls_in_block(contenders, first)
    seconds = read_seconds(contenders, often, settings.rounds, first)
    sent = {name: _sent(contenders[name], first) for name in algorithms}
    made = partial(Reading, operation, elements * ELEMENT)
    return [made(name, often[name], seconds[name], sent.get(name)) for name in contenders]


def _sent(call: Call, ranks: Communicator) -> Sequence[int]:
    """Return the bytes that each rank sends in one call."""
    before = ranks.bytes_sent
    call()
    return ranks.all_gather_object(ranks.bytes_sent - before)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
