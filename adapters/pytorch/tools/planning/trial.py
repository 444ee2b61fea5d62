"""A real training, watched: what torch's allocator gives, what goes to torch.distributed, time.

What ranks send is held by gloo's threads until they come round to letting it go, which on a busy
machine is late: of several steps the one that held least tells what the step itself needs.
Split models are watched by dream's own ledger, which counts storages as torch dispatches
operations. Torch's profiler does not see what gloo's threads let go: what a layer's ranks add up
seems to stay for ever. Ranks of a pipeline die of it now and then, after it has stopped.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._pytree import tree_map

import dream
from dream import _spec, cluster
from dream._strategy import Strategy
from dream.adapters.pytorch.tools.planning import optimizing, watched
from dream.adapters.pytorch.tools.planning.example import Example, example
from dream.adapters.pytorch.tools.planning.ledger import Ledger
from dream.adapters.pytorch.tools.planning.peaks import most_since
from dream.adapters.pytorch.tools.planning.watched import Seen
from dream.tools.plan.trial import Job, Trial

_FIRST, _WATCHED = 2, 6
"""Steps that are watched, after some: DDP's first ones are not like the later ones."""


def run(function: Callable[[], Any], job: Job) -> Trial:
    """This rank's part of it."""
    if not job.watched:
        step, strategy = _made(function, job)
        for _ in range(_FIRST):
            step()
        return Trial(0, None, _timed(step, strategy, job.steps))
    asked = _spec.parse_request(cluster.requested_strategy() or "")[1]
    watch = _noted if "split" in asked else _profiled
    seen, step, strategy = watch(function, job)
    return Trial(min(seen.peaks), seen.given, _timed(step, strategy, job.steps))


def _noted(function: Callable[[], Any], job: Job) -> tuple[Seen, Callable[[], Any], Strategy]:
    """By dream's ledger."""
    peaks: list[int] = []
    with Ledger() as ledger:
        step, strategy = _made(function, job)
        for _ in range(_FIRST + _WATCHED):
            gc.collect()
            begun, sent = len(ledger.events), len(ledger.sent)
            step()
            peaks.append(most_since(ledger, begun)[0])
    given: Counter[str] = Counter()
    for one in ledger.sent[sent:]:
        given[one.operation] += one.size
    return Seen(peaks[_FIRST:], dict(given)), step, strategy


def _profiled(function: Callable[[], Any], job: Job) -> tuple[Seen, Callable[[], Any], Strategy]:
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
    ranks = strategy.topology.world_size
    given = {name: size * _larger(name, ranks) for name, size in seen.given.items()}
    return Seen(seen.peaks[_FIRST:], given), step, strategy


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
