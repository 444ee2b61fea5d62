"""One rank's part of the step benchmark: FILE FAMILY ROUNDS STEPS MODEL CLOCK."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

import _torch_contenders as c
import torch
from _measure import Times, interleave
from _torch_contenders import Contender, Make
from _torch_work import Work, works
from torch import distributed

CLOCKS = {"wall": perf_counter, "cpu": process_time}
LOADING = {"loader in the loop": True, "batches read before": False}


def main(file: str, family: str, rounds: str, steps: str, model: str, clock: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    tables: dict[str, Times] = {}
    for name, work in works(int(steps)).items():
        for how, loading in LOADING.items():
            if model in name:
                title = f"{name}, {how}"
                tables[title] = compare(
                    FAMILIES[family](), work, loading, int(rounds), CLOCKS[clock]
                )
                if distributed.get_rank() == 0:
                    print(f"read: {family}, {title}", flush=True)
    if distributed.get_rank() == 0:
        Path(file).write_text(json.dumps(tables))
    distributed.barrier()
    distributed.destroy_process_group()


def gloo() -> dict[str, Make]:
    """Raw DDP, dream and those of the peers that are installed."""
    makes = beside("raw DDP", c.raw_ddp, "gloo")
    if c.installed("accelerate"):
        makes["Accelerate"] = c.accelerate
    if c.installed("lightning_fabric"):
        makes["Lightning Fabric"] = c.fabric
    return makes


def ring() -> dict[str, Make]:
    return beside("bare hooks on Horovod", c.bare_horovod, "horovod")


def memory() -> dict[str, Make]:
    """Shared memory, beside raw DDP on gloo."""
    return beside("raw DDP", c.raw_ddp, "shared_memory")


def compiled() -> dict[str, Make]:
    """Models under torch.compile, on gloo, and in shared memory."""
    raw = partial(c.raw_ddp, compiled=True)
    return {
        "compiled raw DDP": raw,
        "compiled raw DDP again": raw,
        "dream, gloo": partial(c.dream_loop, reduction="gloo", compiled=True),
        "dream, shared memory": partial(c.dream_loop, reduction="shared_memory", compiled=True),
    }


def beside(name: str, raw: Make, reduction: str) -> dict[str, Make]:
    """dream on `reduction` beside `raw`: the baseline, then the baseline again, the noise."""
    return {
        name: raw,
        f"{name} again": raw,
        "dream, own loop": partial(c.dream_loop, reduction=reduction),
        "dream, train_step": partial(c.dream_step, reduction=reduction),
    }


FAMILIES: dict[str, Callable[[], dict[str, Make]]] = {
    "gloo": gloo, "ring": ring, "memory": memory, "compiled": compiled,
}  # fmt: skip


def compare(
    makes: dict[str, Make], work: Work, loading: bool, rounds: int, clock: Callable[[], float]
) -> Times:
    """Seconds per step of every contender, a figure a round."""
    blocks: dict[str, Callable[[], float]] = {}
    for name, make in makes.items():
        contender = make(work)
        if "compiled" in next(iter(makes)):
            said = graphs(contender)
            if distributed.get_rank() == 0:
                print(f"{name}: {said}", flush=True)
        contender = contender if loading else contender.ready()
        blocks[name] = partial(block, contender, work.steps, clock)
    return interleave(blocks, rounds=rounds * work.turns, warmup=2)


def block(contender: Contender, steps: int, clock: Callable[[], float]) -> float:
    """Seconds per step over one epoch, which both ranks start together."""
    gc.collect()
    distributed.barrier()
    begin = clock()
    contender.epoch()
    return (clock() - begin) / steps


def graphs(contender: Contender) -> str:
    """Train three epochs, and say what torch.compile made of the model."""
    from torch._dynamo.convert_frame import FRAME_COMPILE_COUNTER
    from torch._dynamo.utils import counters

    counters.clear()
    contender.epoch()
    first = sum(FRAME_COMPILE_COUNTER.values())
    contender.epoch()
    contender.epoch()
    made, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    again = sum(FRAME_COMPILE_COUNTER.values()) - first
    return f"{made} graphs, {breaks} breaks, {again} compilations after the first epoch"


if __name__ == "__main__":
    main(*sys.argv[1:])
