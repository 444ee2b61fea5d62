"""The whole comparison, from the names to the last line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from rich.console import Console

from dream import _spec
from dream._errors import ConfigurationError
from dream.compare import available, cells, document, judge, progress, report, runner
from dream.compare.cells import Cell
from dream.compare.outcome import Outcome
from dream.compare.settings import Machine, Settings
from dream.launch.environment import cores


def main(
    n: int,
    frameworks: Sequence[str],
    strategies: Sequence[str],
    settings: Settings,
    json: Path | None = None,
    *,
    mixed: bool = False,
) -> bool:
    """Run, judge, show and write. frameworks, strategies: empty for all that are here; mixed:
    whether rows of two frameworks are added.

    Whether every row is good. Raises ConfigurationError and NotInstalled before anything runs.
    """
    grid = cells.grid(frameworks or cells.KINDS, strategies or _spec.SPECS, n)
    if mixed:
        grid += cells.mixed(frameworks or cells.KINDS, n)
    settings.check(n)
    _check_file(json)
    available.require(grid, frameworks, strategies)
    machine = Machine(cores(), os.getloadavg()[0])
    rows = judge.judge(_run(grid, settings, Console(stderr=True)))
    report.show(rows, settings, machine, _screen())
    if json is not None:
        document.write(json, document.build(rows, settings, machine))
    return all(row.verdict.good for row in rows)


def _run(grid: Sequence[Cell], settings: Settings, console: Console) -> list[tuple[Cell, Outcome]]:
    """Every cell that can run here, one after the other: together they would take each other's
    cores."""
    with TemporaryDirectory(prefix="dream-compare-") as root:

        def run(cell: Cell) -> Outcome:
            return available.missing(cell) or runner.run(cell, settings, Path(mkdtemp(dir=root)))

        return progress.follow(grid, run, console)


def _screen() -> Console:
    """stdout; where it is a file, as wide as the table wants to be."""
    console = Console()
    return console if console.is_terminal else Console(width=200)


def _check_file(json: Path | None) -> None:
    if json is not None and (json.is_dir() or not json.absolute().parent.is_dir()):
        raise ConfigurationError(
            f"No file can be written there. Received: --json {json}. Make its folder first, or "
            "name another file."
        )
