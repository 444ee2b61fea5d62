"""One rank's part of the benchmark of split models: FILE FAMILY MODEL ROUNDS STEPS [CONTENDER].

With a contender, that one alone is run, and what is written is the most memory that a rank took
for it, in MB.
"""

from __future__ import annotations

import gc
import json
import sys
from functools import partial
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import perf_counter

import torch
from _measure import Times, interleave
from _split_contenders import FAMILIES, Contender
from torch import distributed


def main(file: str, family: str, model: str, rounds: str, steps: str, alone: str = "") -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo")
    attention = model == "attention"
    found: object
    if alone:
        found = peak(family, alone, attention=attention)
    else:
        found = compare(family, attention=attention, rounds=int(rounds), steps=int(steps))
    if distributed.get_rank() == 0:
        Path(file).write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


def compare(family: str, *, attention: bool, rounds: int, steps: int) -> Times:
    """Seconds per step of every contender, a figure a round."""
    blocks = {
        name: partial(block, make(attention), steps) for name, make in FAMILIES[family].items()
    }
    return interleave(blocks, rounds=rounds, warmup=2)


def block(contender: Contender, steps: int) -> float:
    """Seconds per step, of steps that both ranks start together."""
    gc.collect()
    distributed.barrier()
    begin = perf_counter()
    contender.steps(steps)
    return (perf_counter() - begin) / steps


def peak(family: str, name: str, *, attention: bool) -> float:
    before = getrusage(RUSAGE_SELF).ru_maxrss
    FAMILIES[family][name](attention).steps(4)
    grown = torch.tensor(float(getrusage(RUSAGE_SELF).ru_maxrss - before))
    distributed.all_reduce(grown, distributed.ReduceOp.MAX)
    return float(grown) / 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
