"""What a training step costs: dream beside raw DDP, Accelerate, Fabric and bare Horovod.

    python benchmarks/step_overhead.py [--rounds 15] [--steps 64] [--models CNN] [--json FILE]

Two ranks of one thread each, all contenders in the same two processes. A block is one epoch of
the contender's own loop; blocks follow one another in shuffled order. Each model is read twice:
with the loader in the loop, and on batches that were read before.
"""

from __future__ import annotations

import gc
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from _measure import Times, arguments, interleave, ratios, start_ranks, write_json

if TYPE_CHECKING:
    from _torch_contenders import Contender, Make
    from _torch_work import Work

RANKS = 2
LOADING = {"loader in the loop": True, "batches read before": False}


def options() -> ArgumentParser:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--steps", type=int, default=64, help="steps in a block of the MLP")
    parser.add_argument("--models", default="", help="only models with this in their name")
    parser.add_argument("--family", choices=("gloo", "ring"), help="only this; default both")
    return parser


def main() -> int:
    asked = options().parse_args()
    if "RANK" not in os.environ:
        return start_ranks(RANKS, __file__, *sys.argv[1:])
    from torch import distributed

    distributed.init_process_group("gloo")
    figures = measure(asked)
    if distributed.get_rank() == 0:
        write_json(asked.json, {"seconds_per_step": figures})
    distributed.barrier()
    distributed.destroy_process_group()
    return 0


def measure(asked: Namespace) -> dict[str, Times]:
    """One rank's part: seconds per step by family, model and loading. Rank 0 prints."""
    import torch
    from _torch_work import works

    torch.set_num_threads(1)
    figures: dict[str, Times] = {}
    for family, makes in families(asked.family).items():
        for name, work in works(asked.steps).items():
            if asked.models in name:
                for how, loading in LOADING.items():
                    times = compare(makes, work, loading=loading, rounds=asked.rounds)
                    figures[f"{family}, {name}, {how}"] = times
                    tell(f"{name}, {how}", times, markdown=asked.markdown)
    return figures


def families(only: str | None) -> dict[str, dict[str, Make]]:
    """Contenders by family; the first is the baseline, the second shows the noise."""
    import _torch_contenders as c

    gloo: dict[str, Make] = {
        "raw DDP": c.raw_ddp,
        "raw DDP again": c.raw_ddp,
        "dream, own loop": c.dream_loop,
        "dream, train_step": c.dream_step,
    }
    if c.installed("accelerate"):
        gloo["Accelerate"] = c.accelerate
    if c.installed("lightning_fabric"):
        gloo["Lightning Fabric"] = c.fabric
    ring: dict[str, Make] = {
        "bare hooks on Horovod": c.bare_horovod,
        "bare hooks again": c.bare_horovod,
        "dream on the ring, own loop": partial(c.dream_loop, reduction="horovod"),
        "dream on the ring, train_step": partial(c.dream_step, reduction="horovod"),
    }
    present = {"gloo": gloo, "ring": ring} if c.installed("horovod") else {"gloo": gloo}
    return {name: makes for name, makes in present.items() if only in (None, name)}


def compare(makes: dict[str, Make], work: Work, *, loading: bool, rounds: int) -> Times:
    """Seconds per step of every contender, a figure a round."""
    blocks: dict[str, Callable[[], float]] = {}
    for name, make in makes.items():
        contender = make(work)
        blocks[name] = partial(block, contender if loading else contender.ready(), work.steps)
    return interleave(blocks, rounds=rounds, warmup=2)


def block(contender: Contender, steps: int) -> float:
    """Seconds per step over one epoch, which both ranks start together."""
    from torch import distributed

    gc.collect()
    distributed.barrier()
    begin = perf_counter()
    contender.epoch()
    return (perf_counter() - begin) / steps


def tell(title: str, times: Times, *, markdown: bool) -> None:
    from torch import distributed

    if distributed.get_rank() == 0:
        print(f"\n{title}\n{ratios(times, unit='ms a step', markdown=markdown)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
