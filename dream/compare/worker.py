"""What runs in every rank of a cell: the task, between reading the job and leaving a record."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dream import _registry, cluster
from dream.compare import record
from dream.compare.meter import Learned, Meter
from dream.compare.settings import Job

JOB = "job.json"


def main(folder: Path) -> None:
    """Run the task that `folder` names and write down what came of it."""
    said = json.loads((folder / JOB).read_text())
    meter = Meter()
    task = _registry.load(said["tasks"][cluster.requested_framework()])
    learned: Learned = task(Job(**said["job"]), meter)
    record.write(folder, _record(learned, meter), learned.parameters)


def _record(learned: Learned, meter: Meter) -> record.RankRecord:
    place = learned.topology
    return record.RankRecord(
        rank=place.rank,
        world_size=place.world_size,
        replicas=place.num_replicas,
        device=place.device,
        reduction=learned.reduction,
        losses=meter.losses,
        accuracy=learned.accuracy,
        samples_per_second=meter.samples_per_second,
        first_step=meter.first_step,
        peak_bytes=record.peak_bytes(),
        digest=record.digest(learned.parameters),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
