"""What a training step costs: dream beside raw DDP, Accelerate, Fabric and bare Horovod.

    python benchmarks/step_overhead.py [--rounds 15] [--steps 64] [--only mlp,cnn] [--json FILE]

Two ranks of one thread each, all contenders in the same two processes. A block is one epoch of
the contender's own loop; blocks follow one another in shuffled order. Each model is read twice:
with the loader in the loop, and on batches that were loaded before.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from _measure import Times, arguments, interleave, ratio, spread, table, write_json

if TYPE_CHECKING:
    from _torch_contenders import Contender
    from _torch_work import Work

RANKS = 2
FAMILIES = ("gloo", "ring")
LOADING = {True: "loader in the loop", False: "batches read before"}


def options() -> ArgumentParser:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--steps", type=int, default=64, help="steps in a block of the MLP")
    parser.add_argument("--families", default=",".join(FAMILIES), help="gloo, ring or both")
    parser.add_argument("--models", default="", help="only models with one of these words")
    return parser


def main() -> int:
    asked = options().parse_args()
    if "RANK" in os.environ:
        measure(asked)
        return 0
    command = [sys.executable, "-m", "dream.cli", "run", "-n", str(RANKS), __file__]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *sys.argv[1:]], env=environment, check=False).returncode


def measure(asked: Namespace) -> None:
    """One rank's part; rank 0 prints and writes."""
    import torch
    from _torch_work import works
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    figures: dict[str, Times] = {}
    for name, work in works(asked.steps).items():
        if not any(word in name for word in asked.models.split(",")):
            continue
        for family in asked.families.split(","):
            for loading, how in LOADING.items():
                title = f"{name}, {how}"
                times = compare(family, work, loading=loading, rounds=asked.rounds)
                figures[f"{family}: {title}"] = times
                if distributed.get_rank() == 0:
                    print(f"\n{title}\n{report(times, markdown=asked.markdown)}", flush=True)
    if distributed.get_rank() == 0:
        write_json(asked.json, {"seconds_per_step": figures})
    distributed.barrier()
    distributed.destroy_process_group()


def compare(family: str, work: Work, *, loading: bool, rounds: int) -> Times:
    """Seconds per step of every contender of the family, a figure a round."""
    from _torch_contenders import contenders

    blocks: dict[str, Callable[[], float]] = {}
    for name, make in contenders(family).items():
        contender = make(work)
        blocks[name] = partial(
            block, contender if loading else contender.ready(), work.steps
        )
    return interleave(blocks, rounds=rounds, warmup=2)


def block(contender: Contender, steps: int) -> float:
    """Seconds per step over one epoch, which both ranks start together."""
    from torch import distributed

    gc.collect()
    distributed.barrier()
    begin = perf_counter()
    contender.train(contender.batches)
    return (perf_counter() - begin) / steps


def report(times: Times, *, markdown: bool) -> str:
    baseline = next(iter(times))
    head = ("", "ms a step (quartiles)", f"against {baseline}")
    rows = [
        (name, str(spread(taken).scaled(1000)), str(ratio(times, name, baseline)))
        for name, taken in times.items()
    ]
    return table(head, rows, markdown=markdown)


if __name__ == "__main__":
    sys.exit(main())
