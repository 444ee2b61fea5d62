"""One rank's part of the checkpoint benchmark: FILE ROUNDS MEGABYTES FOLDER."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
from accelerate import Accelerator
from torch import distributed, nn
from torch.distributed import checkpoint as dcp

import dream
from dream.checkpoint.background import Saving

LAYERS, STEPS, EVERY = 4, 100, 50
Figures = dict[str, dict[str, list[float]]]
Act = Callable[["Bench"], None]


def made(size: int) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """Return a model that has so many bytes with its optimizer's states."""
    width = round((size / (12 * LAYERS)) ** 0.5)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))
    return model, torch.optim.AdamW(model.parameters())


def accelerated(size: int) -> Accelerator:
    """Return Accelerate with the same, by torch alone."""
    model, optimizer = made(size)
    model(torch.randn(8, model[0].in_features)).square().mean().backward()
    optimizer.step()
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(model, optimizer)
    return accelerator


class Bench:
    """A model of so many megabytes with AdamW's state, and what saves and reads it."""

    def __init__(self, megabytes: int, folder: Path) -> None:
        self.size, self.folder = megabytes * 1_000_000, folder
        self.figures: Figures = defaultdict(lambda: defaultdict(list))

    def take(self, strategy: dream.Strategy) -> None:
        """Make what dream trains, in its block."""
        self.strategy = strategy
        self.model, self.optimizer = made(self.size)
        self.inputs = torch.randn(8, self.model[0].in_features)
        self.step()
        state = {f"{i}/{k}": v for i, s in enumerate(self.optimizer.state.values())
                 for k, v in s.items()}  # fmt: skip
        self.state = {"model": dict(self.model.state_dict()), "optimizer": state}
        held = [*self.model.state_dict().values(), *(v for v in state.values() if v.dim())]
        self.part = held[:: distributed.get_world_size()]

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.inputs).square().mean().backward()
        self.optimizer.step()

    def tell(self, table: str, name: str, act: Callable[[], object]) -> None:
        distributed.barrier()
        began = perf_counter()
        act()
        self.figures[table][name].append(perf_counter() - began)

    def fresh(self, name: str) -> Path:
        """Return a folder that is not there."""
        place = self.folder / name
        distributed.barrier()  # others may still read there
        if distributed.get_rank() == 0:
            shutil.rmtree(place, ignore_errors=True)
        distributed.barrier()
        return place

    def save(self, step: int = 1, name: str = "dream") -> Saving:
        return self.strategy.save(
            self.folder / name, step=step, model=self.model, optimizer=self.optimizer, keep=1
        )


def memory(bench: Bench) -> None:
    for name in ("a copy of a rank's part", "the copy again"):
        bench.tell("stall", name, lambda: [tensor.clone() for tensor in bench.part])


def disk(bench: Bench) -> None:
    """What dd writes, from one process; and what is read again, in one go."""
    place = bench.fresh("dd")
    command = ["dd", "if=/dev/zero", f"of={place}", "bs=8M", f"count={bench.size}", "conv=fsync",
               "iflag=count_bytes", "status=none"]  # fmt: skip
    alone = distributed.get_rank() == 0
    bench.tell("whole", "dd with fsync", lambda: alone and subprocess.run(command, check=True))
    bench.tell("read", "the disk's cache", lambda: alone and place.read_bytes())
    bench.fresh("dd")


def ours(bench: Bench) -> None:
    """In a block of its own: in one, torch and Accelerate would write as dream has them."""
    with dream.strategy("mirrored") as bench.strategy:
        bench.fresh("dream")
        distributed.barrier()
        began = perf_counter()
        saving = bench.save()
        bench.figures["stall"]["dream"].append(perf_counter() - began)
        saving.wait()
        bench.figures["whole"]["dream"].append(perf_counter() - began)
        parts = {"model": bench.model, "optimizer": bench.optimizer}
        bench.tell("read", "dream", lambda: bench.strategy.load(bench.folder / "dream", **parts))


def torch_sync(bench: Bench) -> None:
    place = bench.fresh("dcp")
    name = "torch's DCP"
    bench.tell("whole", name, lambda: dcp.save(bench.state, checkpoint_id=place))
    bench.figures["stall"][name].append(bench.figures["whole"][name][-1])
    bench.tell("read", name, lambda: dcp.load(bench.state, checkpoint_id=place))


def torch_async(bench: Bench) -> None:
    place = bench.fresh("dcp-async")
    name = "torch's DCP, async"
    distributed.barrier()
    began = perf_counter()
    saving = dcp.async_save(bench.state, checkpoint_id=place)
    bench.figures["stall"][name].append(perf_counter() - began)
    saving.result()
    bench.figures["whole"][name].append(perf_counter() - began)


def accelerate(bench: Bench, accelerator: Accelerator) -> None:
    place = bench.fresh("accelerate")
    name = "Accelerate"
    bench.tell("whole", name, lambda: accelerator.save_state(str(place)))
    bench.figures["stall"][name].append(bench.figures["whole"][name][-1])
    bench.tell("read", name, lambda: accelerator.load_state(str(place)))


def steps(bench: Bench) -> None:
    def train(name: str = "") -> None:
        for step in range(1, STEPS + 1):
            bench.step()
            if name and step % EVERY == 0:
                bench.save(step, name)

    bench.tell("steps", "none saved", train)
    bench.tell("steps", "none saved again", train)
    bench.tell("steps", "two saved", lambda: train("steps"))
    bench.save(STEPS + 1, "steps").wait()  # nothing is under way when the next is measured
    bench.fresh("steps")


def main(file: str, rounds: str, megabytes: str, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    draw = random.Random(0)
    bench = Bench(int(megabytes), Path(folder))
    with dream.strategy("mirrored") as strategy:
        bench.take(strategy)
    accelerator = accelerated(bench.size)  # which the block would refuse
    others = partial(accelerate, accelerator=accelerator)
    acts: list[Act] = [memory, disk, ours, torch_sync, torch_async, others]
    for number in range(int(rounds) + 1):
        for act in draw.sample(acts, len(acts)):
            act(bench)
        if number == 0:
            bench.figures.clear()
    with dream.strategy("mirrored") as bench.strategy:
        for _ in range(max(1, int(rounds) // 2)):
            steps(bench)
    first = {"stall": "a copy of a rank's part", "whole": "dd with fsync",
             "read": "the disk's cache", "steps": "none saved"}  # fmt: skip
    if distributed.get_rank() == 0:
        found = {
            table: {name: taken[name] for name in sorted(taken, key=lambda n: n != first[table])}
            for table, taken in bench.figures.items()
        }
        Path(file).write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
