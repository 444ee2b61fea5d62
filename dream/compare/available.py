"""What is not installed here, found without importing a framework."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from dream import _registry
from dream._errors import NotInstalled
from dream.compare.cells import Cell
from dream.compare.outcome import Skipped

_HOROVOD_STATUS = "dream.adapters.horovod._status:status"
BUILD = "dream build-horovod"


def missing(cell: Cell) -> Skipped | None:
    """Why the cell cannot run here, if so."""
    absent = [name for name in cell.kind.packages if find_spec(name) is None]
    if absent:
        return Skipped(f"{' and '.join(absent)} not installed.", cell.kind.install)
    for backend in cell.kind.backends if cell.reduction == "horovod" else ():
        gap = horovod_gap(backend)
        if gap:
            return Skipped(f"Horovod for {backend}: {gap}", BUILD)
    return None


def horovod_gap(backend: str) -> str | None:
    """Why the ring cannot serve a framework, if so."""
    status = _registry.load(_HOROVOD_STATUS)()
    return None if status.serves(backend) else str(status.reason)


def require(cells: Sequence[Cell], frameworks: Sequence[str], strategies: Sequence[str]) -> None:
    """Raise NotInstalled where nothing could run of what was asked for by name, or nothing at
    all. frameworks, strategies: the names given; empty where none was."""
    gaps = [(cell, missing(cell)) for cell in cells]
    for name in frameworks:
        _check("framework", name, [gap for cell, gap in gaps if cell.framework == name])
    for name in strategies:
        _check("strategy", name, [gap for cell, gap in gaps if cell.strategy == name])
    _check("comparison", "dream compare", [gap for _, gap in gaps])


def _check(what: str, name: str, gaps: Sequence[Skipped | None]) -> None:
    reasons = [gap for gap in gaps if gap is not None]
    if reasons and len(reasons) == len(gaps):
        raise NotInstalled(
            f"This {what} cannot run here. Received: {name!r}. {reasons[0].reason} "
            f"Run: {reasons[0].install}"
        )
