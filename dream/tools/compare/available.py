"""What is not installed here, found without importing a framework."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from dream import _here, _registry, _spec
from dream._errors import NotInstalled, Unsupported
from dream.tools.compare.cells import Cell
from dream.tools.compare.outcome import Skipped

_HOROVOD_STATUS = "dream.adapters.horovod._status:status"
_HERE_OR_NOT = ("nccl", "shared_memory", "hierarchical")
BUILD = "dream build-horovod"
LIST = "dream strategies"


def missing(cell: Cell) -> Skipped | None:
    """Why the cell cannot run here, if so."""
    return lacking(cell) or absent(cell)


def lacking(cell: Cell) -> Skipped | None:
    """Whether its framework has no such strategy, or not with these options, wherever it is."""
    name, given = _spec.parse_request(cell.strategy)
    reduction = str(given.get("reduction", "auto"))
    own = {option: value for option, value in given.items() if option not in _spec.COMMON}
    for backend in cell.kind.backends:
        if not _has(backend, name):
            return Skipped(f"{backend} has no {name!r}.", LIST)
        try:
            _spec.find(name).check_framework(own, backend, reduction)
        except Unsupported as error:
            return Skipped(str(error), f"{LIST} {name}")
    return None


def absent(cell: Cell) -> Skipped | None:
    """What would have to be installed, if anything."""
    gone = [name for name in cell.kind.packages if find_spec(name) is None]
    if gone:
        return Skipped(f"{' and '.join(gone)} not installed.", cell.kind.install)
    for backend in cell.kind.backends if cell.reduction in _HERE_OR_NOT else ():
        why = _here.obstacle(_spec.find(cell.name), backend, cell.reduction)
        if why:
            return Skipped(f"{cell.reduction}: {why}.", "dream env")
    for backend in cell.kind.backends if cell.reduction == "horovod" else ():
        gap = horovod_gap(backend)
        if gap:
            return Skipped(f"Horovod for {backend}: {gap}", BUILD)
    return None


def _has(backend: str, strategy: str) -> bool:
    """Whether the strategy is there in the framework: dream's own, or somebody else's."""
    from importlib.metadata import entry_points

    named = f"{backend}.{strategy}"
    return (backend, strategy) in _registry.STRATEGIES or bool(
        entry_points(group="dream.strategies", name=named)
    )


def horovod_gap(backend: str) -> str | None:
    """Why the ring cannot serve a framework, if so."""
    status = _registry.load(_HOROVOD_STATUS)()
    return None if status.serves(backend) else str(status.reason)


def require(cells: Sequence[Cell], frameworks: Sequence[str], strategies: Sequence[str]) -> None:
    """Raise NotInstalled where nothing could run of what was asked for by name, or nothing at
    all, for want of something that can be installed. frameworks, strategies: the names given;
    empty where none was."""
    gaps = [(cell, absent(cell)) for cell in cells]
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
