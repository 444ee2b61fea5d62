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
    """Read this rank's rates, or what calls take here, beside the others."""
    said = json.loads((folder / JOB).read_text())
    framework = said["framework"]
    ranks = dream.communicator(framework=framework)
    ranks.barrier()
    found = (
        _calls(framework, said["calls"]) if "calls" in said else _rates(framework, said["dtype"])
    )
    ranks.barrier()
    (folder / f"{ranks.rank}.json").write_text(json.dumps(found))


def _rates(framework: str, dtype: str) -> dict[str, float]:
    return asdict(_registry.load(_registry.RATES[framework])(dtype))


def _calls(framework: str, calls: list[str]) -> list[float | None]:
    """Seconds of each; None for what cannot be made here."""
    return _registry.load(_registry.CALLS[framework])(calls)  # type: ignore[no-any-return]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
