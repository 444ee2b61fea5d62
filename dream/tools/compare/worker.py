"""Run the task of a cell in a rank, between reading the job and leaving a record."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from dream import cluster
from dream.parameter_server.staleness import Staleness
from dream.strategies import registry
from dream.strategies import spec as specs
from dream.tools import jobs, machine, record
from dream.tools.compare import outcome
from dream.tools.compare.meter import Learned, Meter
from dream.tools.compare.settings import Slow, TaskJob

if TYPE_CHECKING:
    from dream.collectives import Communicator


_CALLS = 11
"""All-reduces that are timed, after one that is not."""


@dataclass(frozen=True, slots=True)
class StepParts:
    """Seconds of a step.

    feeding: to have the next batch, the mean over a pass in which nothing is trained.
    reducing: one all_reduce of as many bytes as the gradients have, the median; None where no
    other rank takes part. None, None: not read.
    """

    feeding: float | None = None
    reducing: float | None = None


def measure_parts(learned: Learned, steps: int) -> StepParts:
    """Measure them: every rank comes here. steps: of an epoch."""
    if cluster.frameworks_differ():  # such ranks read data in step, and compare what they read
        return StepParts()
    if learned.communicator is None:  # so do workers in step with one another, and step on it
        return StepParts()
    return StepParts(_feeding(learned, steps), _reducing(learned, learned.communicator))


def _feeding(learned: Learned, steps: int) -> float | None:
    if learned.batches is None:
        return None
    start = perf_counter()
    for _ in learned.batches():
        pass
    return (perf_counter() - start) / max(1, steps)


def _reducing(learned: Learned, communicator: Communicator) -> float | None:
    if learned.topology.world_size == 1:
        return None
    alike = communicator.unchecked()  # as in a step, nobody asks what the others reduce
    return median([_timed(alike, learned.gradient) for _ in range(_CALLS + 1)][1:])


def _timed(communicator: Any, gradient: Any) -> float:
    communicator.barrier()
    start = perf_counter()
    communicator.all_reduce(gradient)
    return perf_counter() - start


def staleness_of(request: str, learned: Learned, meter: Meter) -> Staleness | None:
    """Return None where no update is ever stale. request: the strategy, as `dream run --strategy`
    takes it."""
    name, given = specs.parse_request(request)
    if name != "local_sgd":
        return learned.staleness
    options = specs.find(name).resolve({k: v for k, v in given.items() if k == "every"})
    every, epochs = options["every"], max(1, len(meter.losses))
    assert isinstance(every, int)
    replicas = learned.topology.num_replicas
    return between_averages(meter.steps // epochs, epochs, every, replicas)


def between_averages(steps: int, epochs: int, every: int, replicas: int) -> Staleness:
    """Of replicas that are averaged on every so many steps, and after each epoch: what a gradient
    has not seen are the steps that the others made since. steps: of an epoch."""
    histogram: Counter[int] = Counter()
    apart = 0
    for step in range(1, steps * epochs + 1):
        histogram[apart * (replicas - 1)] += replicas
        apart = 0 if step % every == 0 or step % steps == 0 else apart + 1
    return Staleness(
        histogram=dict(sorted(histogram.items())),
        by_worker=dict.fromkeys(range(replicas), steps * epochs),
        lead=0,
        repeated=0,
        lost=0,
        joined=0,
    )


def main(folder: Path) -> None:
    """Run the task that `folder` names and write down what came of it."""
    said = jobs.read_asked(folder)
    slow = Slow(**said["slow"]) if said["slow"] else None
    meter = Meter(slow.factor if slow and slow.rank == cluster.detect().rank else 1.0)
    task = registry.load(said["tasks"][cluster.requested_framework()])
    imported = machine.resident_bytes()
    learned: Learned = task(TaskJob(**said["job"]), meter)
    peak = machine.peak_bytes()
    parts = measure_parts(learned, meter.steps // max(1, len(meter.losses)))
    record.write(folder, _record(learned, meter, parts, imported, peak), learned.parameters)


def _record(
    learned: Learned, meter: Meter, parts: StepParts, imported: int, peak: int
) -> outcome.RankRecord:
    place = learned.topology
    unseen = staleness_of(cluster.requested_strategy() or "", learned, meter)
    return outcome.RankRecord(
        rank=place.rank,
        world_size=place.world_size,
        replicas=place.num_replicas,
        device=place.device,
        reduction=learned.communicator.reduction if learned.communicator else "servers",
        losses=meter.losses,
        scores=meter.scores,
        epoch_seconds=meter.epoch_seconds,
        window=meter.window,
        steps=meter.steps,
        step_seconds=meter.step_seconds,
        sent_per_step=meter.sent_per_step,
        feeding_seconds=parts.feeding,
        reducing_seconds=parts.reducing,
        gradient_bytes=sum(value.nbytes for value in learned.parameters.values()),
        first_step=meter.first_step,
        imported_bytes=imported,
        peak_bytes=peak,
        digest=outcome.digest(learned.parameters),
        staleness=None if unseen is None else unseen.to_json(),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
