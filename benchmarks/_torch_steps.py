"""One rank's part of the step benchmark: FILE FAMILY ROUNDS STEPS MODEL."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

import _torch_contenders as c
import torch
from _measure import Times, interleave
from _torch_contenders import Contender, Make
from _torch_work import Work, works
from torch import distributed

LOADING = {"loader in the loop": True, "batches read before": False}


def main(file: str, family: str, rounds: str, steps: str, model: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    tables: dict[str, Times] = {}
    for name, work in works(int(steps)).items():
        for how, loading in LOADING.items():
            if model in name:
                title = f"{name}, {how}"
                tables[title] = compare(
                    FAMILIES[family](), work, loading=loading, rounds=int(rounds)
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


def compare(makes: dict[str, Make], work: Work, *, loading: bool, rounds: int) -> Times:
    """Seconds per step of every contender, a figure a round."""
    blocks: dict[str, Callable[[], float]] = {}
    for name, make in makes.items():
        contender = make(work)
        blocks[name] = partial(block, contender if loading else contender.ready(), work.steps)
    return interleave(blocks, rounds=rounds * work.turns, warmup=2)


def block(contender: Contender, steps: int) -> float:
    """Seconds per step over one epoch, which both ranks start together."""
    gc.collect()
    distributed.barrier()
    begin = perf_counter()
    contender.epoch()
    return (perf_counter() - begin) / steps


if __name__ == "__main__":
    main(*sys.argv[1:])
