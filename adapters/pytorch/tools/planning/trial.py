"""Train for real, and watch what torch's allocator gives, what goes to torch.distributed, and time.

What ranks send is held by gloo's threads until they come round to letting it go, which on a busy
machine is late: of several steps the one that held least tells what the step itself needs.

Models in parts are watched by dream's own ledger, which counts storages as torch dispatches
operations. Torch's profiler does not see what gloo's threads let go: what ranks add up or gather
seems to stay for ever. Ranks of a pipeline die of it now and then, after it has stopped.
"""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._pytree import tree_map

import dream
from dream import cluster
from dream._strategy import Strategy
from dream.adapters.pytorch.tools.planning.example import (
    Example,
    cast_batch,
    cast_model,
    example,
    make_optimizer,
    precision_context,
)
from dream.adapters.pytorch.tools.planning.ledger import Ledger, most_since
from dream.strategies import spec as specs
from dream.tools.plan.readings import Trial, TrialJob, step_seconds

STEP = "dream.tools.plan.step"
_SIZES = {"float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "long int": 8, "int": 4}
"""Bytes of a number, by the profiler's name of its dtype."""
_NAMES = {"gloo:recv": "receive"}
_WORK = "gloo:"
"""What gloo's part in the trace begins with; each with the tensors that a rank gave to it."""


@final
@dataclass(frozen=True, slots=True)
class WatchedSteps:
    """Steps whose memory and messages are watched.

    peaks: bytes of tensors at most, step by step; given: to each collective, bytes, in the step
    of those at the end that gives least: now and then ranks look whether they are still alike.
    """

    peaks: list[int]
    given: dict[str, int]


def read_trace(path: Path) -> WatchedSteps:
    events = json.loads(path.read_text())["traceEvents"]
    steps = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("name") == STEP)
    given = [_given(events, *step) for step in steps[-_WATCHED:]]
    return WatchedSteps([_peak(events, *step) for step in steps], min(given, key=_total))


def _given(events: Iterable[Mapping[str, Any]], begin: float, end: float) -> dict[str, int]:
    given: dict[str, int] = {}
    for event in events:
        name = str(event.get("name"))
        if name.startswith(_WORK) and begin <= event["ts"] <= end:
            operation = _NAMES.get(name, name.removeprefix(_WORK))
            given[operation] = given.get(operation, 0) + _bytes(event["args"])
    return given


def _total(given: Mapping[str, int]) -> int:
    return sum(given.values())


def _peak(events: Iterable[Mapping[str, Any]], begin: float, end: float) -> int:
    """By address: what another thread lets go may be noted after its place is given again."""
    memory = sorted(
        (e["ts"], e["args"]["Ev Idx"], e["args"]["Addr"], e["args"]["Bytes"])
        for e in events
        if e.get("name") == "[memory]"
    )
    there: dict[int, int] = {}
    held = most = 0
    for at, _, address, change in memory:
        if at > end:
            break
        if at >= begin:
            most = max(most, held)
        held -= there.pop(address, 0)
        if change > 0:
            there[address] = change
            held += change
        if at >= begin:
            most = max(most, held)
    return most


def _bytes(args: Mapping[str, Any]) -> int:
    """Of all tensors that were given."""
    kinds, dims = args.get("Input type", []), args.get("Input Dims", [])
    return sum(prod(d) * _SIZES[kind] for kind, d in zip(kinds, dims, strict=True) if kind)


_FIRST, _WATCHED = 9, 4
"""Steps that are watched, after some: in the first ones DDP forms its buckets, and ranks compare
the constants of a loss."""


def run_trial(function: Callable[[], Any], job: TrialJob) -> Trial:
    """Train, as this rank's part of a measured run."""
    if not job.watched:
        step, strategy = _made(function, job)
        for _ in range(_FIRST):
            step()
        return Trial(0, None, step_seconds(step, strategy, job.steps))
    asked = specs.parse_request(cluster.requested_strategy() or "")[1]
    watch = _noted if asked.keys() & {"split", "zero"} else _profiled
    seen, step, strategy = watch(function, job)
    return Trial(min(seen.peaks), seen.given, step_seconds(step, strategy, job.steps))


def _noted(
    function: Callable[[], Any], job: TrialJob
) -> tuple[WatchedSteps, Callable[[], Any], Strategy]:
    """By dream's ledger."""
    peaks: list[int] = []
    given: list[dict[str, int]] = []
    with Ledger() as ledger:
        step, strategy = _made(function, job)
        for _ in range(_FIRST + _WATCHED):
            gc.collect()
            begun, sent = len(ledger.events), len(ledger.sent)
            step()
            peaks.append(most_since(ledger, begun)[0])
            counted: Counter[str] = Counter()
            for one in ledger.sent[sent:]:
                counted[one.operation] += one.size
            given.append(dict(counted))
    return WatchedSteps(peaks[_FIRST:], min(given[_FIRST:], key=_total)), step, strategy


def _profiled(
    function: Callable[[], Any], job: TrialJob
) -> tuple[WatchedSteps, Callable[[], Any], Strategy]:
    """By torch's profiler."""
    activities = [ProfilerActivity.CPU]
    with TemporaryDirectory(prefix="dream-plan-") as folder:
        path = Path(folder) / "trace.json"
        with profile(activities=activities, profile_memory=True, record_shapes=True) as profiled:
            step, strategy = _made(function, job)
            for _ in range(_FIRST + _WATCHED):
                gc.collect()  # cut tensors form cycles, which Python lets go when it pleases
                with record_function(STEP):
                    step()
        profiled.export_chrome_trace(str(path))
        seen = read_trace(path)
    ranks = strategy.topology.world_size
    given = {name: size * _larger(name, ranks) for name, size in seen.given.items()}
    return WatchedSteps(seen.peaks[_FIRST:], given), step, strategy


def _larger(operation: str, ranks: int) -> int:
    """Return how much larger what comes of a collective is than what a rank gives to it."""
    return ranks if operation == "all_gather" else 1


def _made(function: Callable[[], Any], job: TrialJob) -> tuple[Callable[[], Any], Strategy]:
    torch.manual_seed(0)  # parts of one model work on the same samples
    strategy = dream.strategy()
    with strategy:
        found = example(function())
        model = cast_model(found.model, job.training.precision).train()
        optimizer = make_optimizer(
            job.training.optimizer, model.parameters(), fused=job.training.fused
        )
        step = strategy.train_step(model, found.loss, optimizer)
    batch = _share(found, job, strategy)
    del found

    def once() -> Any:
        with precision_context(job.training.precision):
            return step(*batch)

    return once, strategy


def _share(found: Example, job: TrialJob, strategy: Strategy) -> tuple[Any, ...]:
    """Return this rank's samples, beside which nothing of the batch stays."""
    place = strategy.topology
    first, last = job.share(place.rank, place.world_size)
    precision = job.training.precision
    batch: tuple[Any, ...] = tree_map(
        lambda x: cast_batch(x, precision) if isinstance(x, torch.Tensor) else x,
        found.batch_of(last - first),
    )
    return batch if len(batch) > 1 else (*batch, *batch)  # a step wants a target
