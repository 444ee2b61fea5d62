"""What runs in every rank of a cell: the task, between reading the job and leaving a record."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dream import _process, _registry, cluster
from dream.tools.compare import probe, record, stale
from dream.tools.compare.meter import Learned, Meter
from dream.tools.compare.settings import Job
from dream.tools.compare.slow import Slow

JOB = "job.json"


def main(folder: Path) -> None:
    """Run the task that `folder` names and write down what came of it."""
    said = json.loads((folder / JOB).read_text())
    slow = Slow(**said["slow"]) if said["slow"] else None
    meter = Meter(slow.factor if slow and slow.rank == cluster.detect().rank else 1.0)
    task = _registry.load(said["tasks"][cluster.requested_framework()])
    imported = _process.resident_bytes()
    learned: Learned = task(Job(**said["job"]), meter)
    peak = _process.peak_bytes()
    parts = probe.measure(learned, meter.steps // max(1, len(meter.losses)))
    record.write(folder, _record(learned, meter, parts, imported, peak), learned.parameters)


def _record(
    learned: Learned, meter: Meter, parts: probe.Parts, imported: int, peak: int
) -> record.RankRecord:
    place = learned.topology
    unseen = stale.of(cluster.requested_strategy() or "", learned, meter)
    return record.RankRecord(
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
        digest=record.digest(learned.parameters),
        staleness=None if unseen is None else unseen.to_json(),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
