"""One rank's part of the shared-memory benchmark: FILE ROUNDS SIZES."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

import torch
from _measure import Times, interleave
from torch import distributed

from dream import cluster
from dream.shared_memory import Group, Row, connect

Act = Callable[[torch.Tensor], object]


def main(file: str, rounds: str, sizes: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    place = cluster.detect()
    group = connect(place, range(place.world_size), "benchmark")
    acts = contenders(group)
    found = {size: compare(group, acts, int(size), int(rounds)) for size in sizes.split(",")}
    if place.rank == 0:
        Path(file).write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


def contenders(group: Group) -> dict[str, Act]:
    acts: dict[str, Act] = {
        "shared memory": partial(shared, group),
        "shared memory again": partial(shared, group),
        "gloo": distributed.all_reduce,
    }
    if find_spec("horovod") is not None:
        import horovod.torch as hvd

        hvd.init()
        acts["Horovod"] = partial(hvd.allreduce_, op=hvd.Sum, name="benchmark")
    return acts


def shared(group: Group, x: torch.Tensor) -> None:
    address = x.data_ptr()
    group.all_reduce(address, address, x.numel(), "float32", "sum")


def lying(group: Group, size: int) -> Act:
    """As DDP's buckets are reduced, which lie in memory of all ranks."""
    row, count = Row(group, size), size // 4

    def act(x: torch.Tensor) -> None:
        del x
        group.reduce_there(row.begin, row.stride, count, "float32", "sum", everywhere=True)

    return act


def compare(group: Group, acts: dict[str, Act], size: int, rounds: int) -> Times:
    """Seconds a call of every contender, a figure a round."""
    x, y = torch.ones(size // 4).zero_(), torch.ones(size // 4)
    acts = {"copy": y.copy_, **acts, "where it lies": lying(group, size)}
    turns = max(1, min(50, 20_000_000 // size))
    blocks = {name: partial(block, group, act, x, turns) for name, act in acts.items()}
    return interleave(blocks, rounds=rounds, warmup=2)


def block(group: Group, act: Act, x: torch.Tensor, turns: int) -> float:
    """Seconds a call, which all ranks start together."""
    for _ in range(2):
        group.barrier()
    begin = perf_counter()
    for _ in range(turns):
        act(x)
    return (perf_counter() - begin) / turns


if __name__ == "__main__":
    main(*sys.argv[1:])
