"""A user's script as a cell: started as `dream run` starts it, unchanged, and recorded."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from time import time

from dream.cluster.settings import RECORD
from dream.launch import start
from dream.launch.command import explain
from dream.launch.job import Job
from dream.tools import recording
from dream.tools.compare import record, verified
from dream.tools.compare.cells import SINGLE, Cell
from dream.tools.compare.outcome import Broken, Finished, Outcome
from dream.tools.compare.record import RankRecord
from dream.tools.compare.settings import Settings
from dream.tools.recording import record as recorded
from dream.tools.recording.record import Record
from dream.tools.recording.request import Request
from dream.tools.verify.runs import Ran

UNKNOWN = Cell("torch", SINGLE, 1)
"""`single` before one knows what the script trains with."""
NO_LOSS = f"No loss was computed: the script entered a block and ended. {recording.SEEN}"


def run(cell: Cell, settings: Settings, folder: Path) -> Outcome:
    """Run the script under the cell's strategy to its end. Never raises for what it does."""
    started = time()
    job = Job(
        command=settings.script,
        n=cell.processes,
        strategy=cell.strategy,
        show="none",
        timeout=settings.timeout,
    )
    environ = {**job.environ, RECORD: Request(folder, verified.EVERY_STEP).text}
    if cell is not UNKNOWN:  # a Keras script trains with what its row is named after
        environ["KERAS_BACKEND"] = cell.kind.backends[0]
    ended = start.run(replace(job, environ=environ))
    if ended.exit_code != 0:
        return Broken(explain(ended), timed_out=bool(ended.lost))
    try:
        told = [recorded.read(folder, rank) for rank in range(cell.trained)]
    except FileNotFoundError as error:
        return Broken(f"A rank left no record: {Path(error.filename).name} is not there.")
    if not told[0].framework:
        return Broken(recording.NO_BLOCK)
    if not all(each.steps for each in told):
        return Broken(NO_LOSS)
    found = _named(told[0])
    if found != cell.framework and cell is not UNKNOWN:
        return Broken(
            f"The script trains with {found}, not with {cell.framework}. Received: --frameworks "
            f"{cell.framework}. Leave it out, or name {found}."
        )
    return _finished(told, folder, started)


def framework(folder: Path, script: Path) -> str:
    """What the script trains with, as the grid names it: by its record in `folder`, or where it
    left none, by what it imports; empty where neither tells."""
    try:
        told = recorded.read(folder, 0)
    except FileNotFoundError:
        return _imported(script)
    return _named(told)


def _named(told: Record) -> str:
    """A framework as the grid names it."""
    return "keras-torch" if told.keras and told.framework == "torch" else told.framework


def _finished(told: list[Record], folder: Path, started: float) -> Finished:
    parameters = tuple(recorded.read_parameters(folder, each.rank) for each in told)
    ran = Ran(tuple(told), parameters, time() - started)
    losses = ran.losses
    records = [
        _record(each, losses, record.digest(mine))
        for each, mine in zip(told, parameters, strict=True)
    ]
    if told[0].staleness is not None:  # steps of one worker are none of another's
        total = sum(each.window[2] for each in records)
        records = [replace(each, window=(*each.window[:2], total)) for each in records]
    start_up = max(each.pace.first_step for each in told) - started
    return Finished(tuple(records), parameters, start_up, ran=ran)


def _record(told: Record, losses: list[float], digest: str) -> RankRecord:
    clocks = told.pace.clocks
    warm = min(len(clocks) - 1, max(1, len(clocks) // 10))
    steps = len(clocks) - 1 - warm
    nan = float("nan")
    window = (clocks[warm], clocks[-1], float(steps)) if steps > 0 else (nan, nan, nan)
    return RankRecord(
        rank=told.rank,
        world_size=told.world_size,
        replicas=told.replicas,
        device="",
        reduction=told.reduction,
        losses=losses,
        scores=[],
        epoch_seconds=[],
        window=window,
        steps=len(clocks),
        step_seconds=(window[1] - window[0]) / steps if steps > 0 else nan,
        sent_per_step=told.pace.sent,
        feeding_seconds=None,
        reducing_seconds=None,
        gradient_bytes=told.gradient_bytes,
        first_step=told.pace.first_step,
        imported_bytes=told.pace.entered_bytes,
        peak_bytes=told.pace.peak_bytes,
        digest=digest,
        staleness=told.staleness,
    )


def _imported(script: Path) -> str:
    try:
        tree = ast.parse(script.read_text())
    except (OSError, SyntaxError, ValueError):
        return ""
    names = {
        alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {
        (node.module or "").partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    }
    if names & {"tensorflow", "keras"}:
        return "keras-torch" if "torch" in names and "tensorflow" not in names else "tensorflow"
    return "torch" if "torch" in names else ""
