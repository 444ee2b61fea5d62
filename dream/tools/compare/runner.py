"""Run one cell, where it can run here: a job of its own, of an embedded task or of a script."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from time import time

from dream._errors import NotInstalled, Unsupported
from dream.launch.ending import explain
from dream.strategies import registry
from dream.strategies import spec as specs
from dream.tools import jobs, placing, record, support
from dream.tools.compare import judge, outcome, worker
from dream.tools.compare.cells import SINGLE, Cell, RankKind
from dream.tools.compare.outcome import Finished, Outcome, RankRecord, Skipped
from dream.tools.compare.settings import Settings
from dream.tools.record import NO_BLOCK, SEEN, Record, RecordRequest
from dream.tools.verify.runs import Broken, Ran, run_recorded

_HERE_OR_NOT = ("nccl", "shared_memory", "hierarchical")
BUILD = "dream build-horovod"
LIST = "dream strategies"


def missing(cell: Cell) -> Skipped | None:
    """Return why the cell cannot run here, if so."""
    return lacking(cell) or absent(cell)


def lacking(cell: Cell) -> Skipped | None:
    """Return whether its framework has no such strategy, or not with these options, wherever it
    is."""
    name, given = specs.parse_request(cell.strategy)
    reduction = str(given.get("reduction", "auto"))
    own = {option: value for option, value in given.items() if option not in specs.COMMON}
    for backend in cell.kind.backends:
        if not _has(backend, name):
            return Skipped(f"{backend} has no {name!r}.", LIST)
        try:
            specs.find(name).check_framework(own, backend, reduction)
        except Unsupported as error:
            return Skipped(str(error), f"{LIST} {name}")
    return None


def absent(cell: Cell) -> Skipped | None:
    """Return what would have to be installed, if anything."""
    gone = [name for name in cell.kind.packages if find_spec(name) is None]
    if gone:
        return Skipped(f"{' and '.join(gone)} not installed.", cell.kind.install)
    for backend in cell.kind.backends if cell.reduction in _HERE_OR_NOT else ():
        why = support.obstacle(specs.find(cell.name), backend, cell.reduction)
        if why:
            return Skipped(f"{cell.reduction}: {why}.", "dream env")
    for backend in cell.kind.backends if cell.reduction == "horovod" else ():
        gap = horovod_gap(backend)
        if gap:
            return Skipped(f"Horovod for {backend}: {gap}", BUILD)
    return None


def _has(backend: str, strategy: str) -> bool:
    """Return whether the strategy is there in the framework: dream's own, or somebody else's."""
    from importlib.metadata import entry_points

    named = f"{backend}.{strategy}"
    return (backend, strategy) in registry.STRATEGIES or bool(
        entry_points(group="dream.strategies", name=named)
    )


def horovod_gap(backend: str) -> str | None:
    """Return why the ring cannot serve a framework, if so."""
    status = support.horovod_status()
    return None if status.serves(backend) else str(status.reason)


def require(cells: Sequence[Cell], frameworks: Sequence[str], strategies: Sequence[str]) -> None:
    """Raise NotInstalled where nothing could run of what was asked for by name, or nothing at
    all, for want of something that can be installed. frameworks, strategies: the names given;
    empty where none was."""
    gaps = [(cell, absent(cell)) for cell in cells]
    for name in frameworks:
        _require("framework", name, [gap for cell, gap in gaps if cell.framework == name])
    for name in strategies:
        _require("strategy", name, [gap for cell, gap in gaps if cell.strategy == name])
    _require("comparison", "dream compare", [gap for _, gap in gaps])


def _require(what: str, name: str, gaps: Sequence[Skipped | None]) -> None:
    reasons = [gap for gap in gaps if gap is not None]
    if reasons and len(reasons) == len(gaps):
        raise NotInstalled(
            f"This {what} cannot run here. Received: {name!r}. {reasons[0].reason} "
            f"Run: {reasons[0].install}"
        )


def run(cell: Cell, settings: Settings, folder: Path) -> Outcome:
    """Run the cell to its end, in a folder of its own. Never raises for what the job does."""
    if settings.script:
        return run_script(cell, settings, folder)
    tasks = {side.backend: settings.tasks[_flavour(cell, side)] for side in cell.kind.sides}
    slow = asdict(cell.slow) if cell.slow else None
    said = {"tasks": tasks, "job": asdict(settings.job), "slow": slow}
    backends = cell.kind.backends
    # the user's own KERAS_BACKEND would have the last word over the framework; in a mixed job the
    # launcher gives each rank its own
    environ = {} if cell.kind.mixed else {"KERAS_BACKEND": backends[0]}
    started = time()
    ended = jobs.run(
        worker.__name__,
        folder,
        said,
        n=cell.processes,
        frameworks=backends,
        timeout=settings.timeout,
        strategy=cell.strategy,
        environ=environ,
    )
    if ended.exit_code != 0:
        return Broken(explain(ended), timed_out=bool(ended.lost))
    return _collect(cell, folder, started)


def _flavour(cell: Cell, side: RankKind) -> str:
    """Return which of a task's programs: torch's loop, where the strategy leaves the step to it."""
    owned = side.flavour == "torch" and placing.owns_step(cell.strategy)
    return "owned" if owned else side.flavour


def _collect(cell: Cell, folder: Path, started: float) -> Outcome:
    ranks = range(cell.trained)
    try:
        records = tuple(outcome.read_record(folder, rank) for rank in ranks)
    except FileNotFoundError as error:
        return Broken(f"A rank left no record: {Path(error.filename).name} is not there.")
    parameters = tuple(record.read_parameters(folder, rank) for rank in ranks)
    return Finished(records, parameters, max(r.first_step for r in records) - started)


UNKNOWN = Cell("torch", SINGLE, 1)
"""`single` before one knows what the script trains with."""
NO_LOSS = f"No loss was computed: the script entered a block and ended. {SEEN}"


def run_script(cell: Cell, settings: Settings, folder: Path) -> Outcome:
    """Run the script under the cell's strategy to its end. Never raises for what it does."""
    started = time()
    # a Keras script trains with what its row is named after
    environ = {} if cell is UNKNOWN else {"KERAS_BACKEND": cell.kind.backends[0]}
    request = RecordRequest(folder, judge.EVERY_STEP)
    ran = run_recorded(settings.script, cell.placement, request, settings.timeout, environ)
    if isinstance(ran, Broken):
        return ran
    told = ran.records
    if not told[0].framework:
        return Broken(NO_BLOCK)
    if not all(each.steps for each in told):
        return Broken(NO_LOSS)
    found = _framework_name(told[0])
    if found != cell.framework and cell is not UNKNOWN:
        return Broken(
            f"The script trains with {found}, not with {cell.framework}. Received: --frameworks "
            f"{cell.framework}. Remove it, or name {found}."
        )
    return _finished(ran, started)


def framework_of(folder: Path, script: Path) -> str:
    """Return what the script trains with, as the grid names it: by its record in `folder`, or where
    it left none, by what it imports; empty where neither tells."""
    try:
        told = record.read(folder, 0)
    except FileNotFoundError:
        return _imported(script)
    return _framework_name(told)


def _framework_name(told: Record) -> str:
    """Return a framework as the grid names it."""
    return "keras-torch" if told.keras and told.framework == "torch" else told.framework


def _finished(ran: Ran, started: float) -> Finished:
    told = ran.records
    records = [
        _rank_record(each, ran.losses, outcome.digest(mine))
        for each, mine in zip(told, ran.parameters, strict=True)
    ]
    if told[0].staleness is not None:  # steps of one worker are none of another's
        total = sum(each.window[2] for each in records)
        records = [replace(each, window=(*each.window[:2], total)) for each in records]
    start_up = max(each.pace.first_step for each in told) - started
    return Finished(tuple(records), ran.parameters, start_up, ran=ran)


def _rank_record(told: Record, losses: list[float], digest: str) -> RankRecord:
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
