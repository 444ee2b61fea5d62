"""A real training, watched: what torch's allocator gives, what goes to torch.distributed, time.

What ranks send is held by gloo's threads until they come round to letting it go, which on a busy
machine is late: of several steps the one that held least tells what the step itself needs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._pytree import tree_map

import dream
from dream._strategy import Strategy
from dream.adapters.pytorch.planning import optimizing, watched
from dream.adapters.pytorch.planning.example import Example, example
from dream.plan.trial import Job, Trial

_FIRST, _WATCHED = 2, 6
"""Steps that are watched, after some: DDP's first ones are not like the later ones."""


def run(function: Callable[[], Any], job: Job) -> Trial:
    """This rank's part of it."""
    peak, given, step, strategy = _watched(function, job)
    return Trial(peak, given, _timed(step, strategy, job.steps))


def _watched(
    function: Callable[[], Any], job: Job
) -> tuple[int, dict[str, int], Callable[[], Any], Strategy]:
    """By torch's profiler."""
    activities = [ProfilerActivity.CPU]
    with TemporaryDirectory(prefix="dream-plan-") as folder:
        path = Path(folder) / "trace.json"
        with profile(activities=activities, profile_memory=True, record_shapes=True) as profiled:
            step, strategy = _made(function, job)
            for _ in range(_FIRST + _WATCHED):
                gc.collect()  # cut tensors form cycles, which Python lets go when it pleases
                with record_function(watched.STEP):
                    step()
        profiled.export_chrome_trace(str(path))
        seen = watched.read(path)
    place = strategy.topology
    given = {name: size * _larger(name, place.world_size) for name, size in seen.given.items()}
    return min(seen.peaks[_FIRST:]), given, step, strategy


def _larger(operation: str, ranks: int) -> int:
    """How much larger what comes of a collective is than what a rank gives to it."""
    return ranks if operation == "all_gather" else 1


def _made(function: Callable[[], Any], job: Job) -> tuple[Callable[[], Any], Strategy]:
    torch.manual_seed(0)  # parts of one model work on the same samples
    strategy = dream.strategy()
    with strategy:
        found = example(function())
        model = optimizing.cast(found.model, job.training.precision).train()
        optimizer = optimizing.optimizer(
            job.training.optimizer, model.parameters(), fused=job.training.fused
        )
        step = strategy.train_step(model, found.loss, optimizer)
    batch = _share(found, job, strategy)
    del found

    def once() -> Any:
        with optimizing.computing(job.training.precision):
            return step(*batch)

    return once, strategy


def _share(found: Example, job: Job, strategy: Strategy) -> tuple[Any, ...]:
    """This rank's samples, beside which nothing of the batch stays."""
    place = strategy.topology
    first, last = job.share(place.rank, place.world_size)
    precision = job.training.precision
    batch: tuple[Any, ...] = tree_map(
        lambda x: optimizing.cast_batch(x, precision) if isinstance(x, torch.Tensor) else x,
        found.batch_of(last - first),
    )
    return batch if len(batch) > 1 else (*batch, *batch)  # a step wants a target


def _timed(step: Callable[[], Any], strategy: Strategy, steps: int) -> list[float]:
    taken = []
    for _ in range(steps):
        strategy.communicator.barrier()
        begin = perf_counter()
        step()
        taken.append(perf_counter() - begin)
    return taken
