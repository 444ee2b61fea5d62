"""One rank's part of the benchmark of collectives: FILE FRAMEWORK TRANSPORT ROUNDS CALLS SIZES."""

from __future__ import annotations

import gc
import json
import mmap
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter, thread_time
from timeit import repeat
from typing import Any

from _measure import Times, interleave

import dream
from dream.collectives.board import Call
from dream.collectives.page import Page, words_needed

SMALL = 1024
"""Elements of the tensor whose calls are counted: 4 KB."""
BLOCK_BYTES = 32 << 20
MOST_CALLS = 50
Calls = Mapping[str, Callable[[], Any]]


def main(
    file: str, framework: str, transport: str, rounds: str, calls: str, sizes: Sequence[str]
) -> None:
    ranks = dream.communicator(transport, framework=framework)
    side: Any = import_module(f"_collectives_{framework}")
    figures: dict[str, Any] = {}
    if int(calls):
        figures["calls"] = each_call(_contenders(side, ranks, transport, SMALL), int(calls))
        figures["meeting"] = _microseconds(ranks.barrier, int(calls))
        figures["alone"] = alone(side, ranks, transport)
    for size in sizes:
        contenders = _contenders(side, ranks, transport, int(size) // 4)
        often = max(1, min(MOST_CALLS, BLOCK_BYTES // int(size)))
        blocks = {name: partial(block, ranks, act, often) for name, act in contenders.items()}
        figures.setdefault("sizes", {})[size] = interleave(blocks, rounds=int(rounds), warmup=2)
        if ranks.rank == 0:
            print(f"read: {framework} {transport}, {size} bytes", flush=True)
    if ranks.rank == 0:
        Path(file).write_text(json.dumps(figures))
    ranks.barrier()


def _contenders(side: Any, ranks: Any, transport: str, elements: int) -> dict[str, Any]:
    """Raw twice, which shows the noise, and dream with its check and without; of each kind."""
    x = side.tensor(elements)
    raw = side.raw(transport, x)
    made = [
        (raw, "raw"),
        (raw, "raw again"),
        (side.dream(ranks, x), "dream"),
        (side.dream(ranks.unchecked(), x), "dream, check=False"),
    ]
    return {f"{name}|{kind}": calls[kind] for kind in raw for calls, name in made}


def each_call(contenders: Calls, calls: int) -> dict[str, Times]:
    """Seconds of every single call, in turns: on the clock, and of this thread's own work."""
    draw = random.Random(0)
    clock: Times = {name: [] for name in contenders}
    own: Times = {name: [] for name in contenders}
    for act in contenders.values():
        act()
    gc.disable()
    for _ in range(calls):
        for name in draw.sample(list(contenders), len(contenders)):
            begin, worked = perf_counter(), thread_time()
            contenders[name]()
            own[name].append(thread_time() - worked)
            clock[name].append(perf_counter() - begin)
    gc.enable()
    return {"clock": clock, "own": own}


def alone(side: Any, ranks: Any, transport: str) -> dict[str, float]:
    """Microseconds of a call that waits for nobody: on rank 0, in a group of its own. Only of the
    frameworks' own transports."""
    if transport == "horovod":
        return {}
    x = side.tensor(SMALL)
    raw, group = side.raw_alone(x), ranks.group([0])
    found: dict[str, float] = {}
    if group is not None:
        for kind, act in side.dream(group, x).items():
            found[f"raw|{kind}"] = _microseconds(raw[kind], 1000)
            found[f"dream, check=False|{kind}"] = _microseconds(act, 1000)
        found["the check's own part"] = _microseconds(_page_of_one(), 10_000)
    ranks.barrier()
    return found


def _page_of_one() -> Callable[[], Any]:
    """What a rank does on the shared page where all others have come before it."""
    page = Page(mmap.mmap(-1, 8 * words_needed(1)), [0], 0, [os.getpid()], 60.0)
    return partial(page.agree, Call(f"all_reduce(op='sum') of float32 ({SMALL},)"))


def _microseconds(act: Callable[[], Any], often: int) -> float:
    """Of one call, the median of five blocks."""
    act()
    return sorted(repeat(act, number=often, repeat=5))[2] / often * 1e6


def block(ranks: Any, act: Callable[[], Any], calls: int) -> float:
    """Seconds of a call, among several that the ranks begin together."""
    gc.collect()
    ranks.barrier()
    begin = perf_counter()
    for _ in range(calls):
        act()
    return (perf_counter() - begin) / calls


if __name__ == "__main__":
    main(*sys.argv[1:6], sys.argv[6:])
