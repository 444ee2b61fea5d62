"""What runs in every rank of a measured run."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from dream import _registry, cluster
from dream.tools.plan.asked import Training
from dream.tools.plan.trial import Job, Trial
from dream.tools.plan.worker import flavour
from dream.tools.port_check import building

JOB = "job.json"


def main(folder: Path) -> None:
    """Train as `folder` says and write down what came of it."""
    said = json.loads((folder / JOB).read_text())
    job = Job(**{**said, "training": Training(**said["training"])})
    function = building.load(job.place)
    trial: Trial = _registry.load(_registry.TRIALS[flavour(job.place)])(function, job)
    (folder / f"{cluster.detect().rank}.json").write_text(json.dumps(asdict(trial)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
