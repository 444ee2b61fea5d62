"""One framework's job, started by the launcher as `dream run` would start it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from dream._errors import WorkerFailed
from dream._spec import Framework
from dream.launch import start
from dream.launch.command import explain
from dream.launch.job import Job
from dream.tools.collectives import worker
from dream.tools.collectives.figures import Reading, Row, rows
from dream.tools.collectives.settings import Settings


def run(
    framework: Framework, reductions: Sequence[str], settings: Settings, folder: Path
) -> list[Row]:
    """Its figures. All transports are read in the same ranks, in turns. Raises WorkerFailed."""
    said = {"framework": framework, "reductions": reductions, "settings": asdict(settings)}
    (folder / worker.JOB).write_text(json.dumps(said))
    ended = start.run(
        Job(
            command=("module", worker.__name__, str(folder)),
            n=settings.n,
            frameworks=(framework,),
            show="none",
            timeout=settings.timeout,
        )
    )
    if ended.exit_code != 0:
        raise WorkerFailed(
            explain(ended), rank=ended.cause.first.rank if ended.cause is not None else None
        )
    read = json.loads((folder / worker.READ).read_text())
    return rows(framework, settings.n, [Reading(**each) for each in read])
