"""One cell: a job of its own, started by the launcher as `dream run` would start it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from time import time

from dream import _placing
from dream.launch import start
from dream.launch.command import explain
from dream.launch.job import Job
from dream.tools.compare import record, scripts, worker
from dream.tools.compare.cells import Cell
from dream.tools.compare.kinds import Side
from dream.tools.compare.outcome import Broken, Finished, Outcome
from dream.tools.compare.settings import Settings


def run(cell: Cell, settings: Settings, folder: Path) -> Outcome:
    """Run the cell to its end, in a folder of its own. Never raises for what the job does."""
    if settings.script:
        return scripts.run(cell, settings, folder)
    tasks = {side.backend: settings.tasks[_flavour(cell, side)] for side in cell.kind.sides}
    slow = asdict(cell.slow) if cell.slow else None
    said = {"tasks": tasks, "job": asdict(settings.job), "slow": slow}
    (folder / worker.JOB).write_text(json.dumps(said))
    started = time()
    ended = start.run(_job(cell, settings, folder))
    if ended.exit_code != 0:
        return Broken(explain(ended), timed_out=bool(ended.lost))
    return _collect(cell, folder, started)


def _flavour(cell: Cell, side: Side) -> str:
    """Which of a task's programs: torch's loop, where the strategy leaves the step to it."""
    owned = side.flavour == "torch" and _placing.owns_step(cell.strategy)
    return "owned" if owned else side.flavour


def _job(cell: Cell, settings: Settings, folder: Path) -> Job:
    job = Job(
        command=("module", worker.__name__, str(folder)),
        n=cell.processes,
        strategy=cell.strategy,
        frameworks=cell.kind.backends,
        show="none",
        timeout=settings.timeout,
    )
    if cell.kind.mixed:  # the launcher gives each rank its own KERAS_BACKEND
        return job
    # the user's own KERAS_BACKEND would have the last word over the framework
    return replace(job, environ={**job.environ, "KERAS_BACKEND": cell.kind.backends[0]})


def _collect(cell: Cell, folder: Path, started: float) -> Outcome:
    ranks = range(cell.trained)
    try:
        records = tuple(record.read(folder, rank) for rank in ranks)
    except FileNotFoundError as error:
        return Broken(f"A rank left no record: {Path(error.filename).name} is not there.")
    parameters = tuple(record.read_parameters(folder, rank) for rank in ranks)
    return Finished(records, parameters, max(r.first_step for r in records) - started)
