"""What runs in every rank of a calibration, all at the same time."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import dream
from dream import _registry

JOB = "job.json"


def main(folder: Path) -> None:
    """Read this rank's rates, beside the others."""
    said = json.loads((folder / JOB).read_text())
    framework = said["framework"]
    ranks = dream.communicator(framework=framework)
    ranks.barrier()
    found = _registry.load(_registry.RATES[framework])(said["dtype"])
    ranks.barrier()
    (folder / f"{ranks.rank}.json").write_text(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
