"""What runs in every rank: all cases, over all transports."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import dream
from dream import _registry
from dream.collectives import Communicator
from dream.tools.collectives import blocks, calls
from dream.tools.collectives.calls import Call, Make
from dream.tools.collectives.cost import ELEMENT
from dream.tools.collectives.figures import MEMCPY, Reading
from dream.tools.collectives.settings import Settings

JOB, READ = "job.json", "read.json"


def main(folder: Path) -> None:
    """Measure what `folder` names; rank 0 writes down what all read."""
    said = json.loads((folder / JOB).read_text())
    settings, framework = Settings(**said["settings"]), said["framework"]
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
        (folder / READ).write_text(json.dumps([asdict(reading) for reading in read]))


def _maker(framework: str) -> Make:
    import numpy as np

    tensors = _registry.tensors(framework)
    return lambda elements: tensors.take(np.ones(elements, np.float32))


def _case(
    operation: str,
    size: int,
    transports: dict[str, Communicator],
    settings: Settings,
    make: Make,
) -> list[Reading]:
    """One operation and size, over everything."""
    first = next(iter(transports.values()))
    elements = settings.elements(size)
    algorithms = settings.algorithms if operation == "all_reduce" else ()
    contenders: dict[str, Call] = {
        name: calls.operation(ranks, operation, elements, make)
        for name, ranks in transports.items()
    }
    contenders |= {name: calls.algorithm(first, name, elements, make) for name in algorithms}
    contenders[MEMCPY] = calls.memcpy(elements)
    often = blocks.calls_in_block(contenders, first)
    seconds = blocks.read(contenders, often, settings.rounds, first)
    sent = {name: _sent(contenders[name], first) for name in algorithms}
    made = partial(Reading, operation, elements * ELEMENT)
    return [made(name, often[name], seconds[name], sent.get(name)) for name in contenders]


def _sent(call: Call, ranks: Communicator) -> Sequence[int]:
    """Bytes that each rank sends in one call."""
    before = ranks.bytes_sent
    call()
    return ranks.all_gather_object(ranks.bytes_sent - before)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
