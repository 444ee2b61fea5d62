"""The whole comparison, from the names to the last line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

from rich.console import Console
from rich.text import Text

from dream._errors import ConfigurationError
from dream._screen import screen
from dream.files.whole import check_output, write_json
from dream.launch.guard import temporary_folder
from dream.tools import recording
from dream.tools.compare import (
    available,
    document,
    grid,
    judge,
    page,
    progress,
    report,
    runner,
    scripts,
    verified,
)
from dream.tools.compare.cells import Cell
from dream.tools.compare.judge import Row
from dream.tools.compare.kinds import KINDS
from dream.tools.compare.machine import Watch
from dream.tools.compare.outcome import Broken, Finished, Outcome
from dream.tools.compare.settings import Settings


def main(
    counts: int | Sequence[int],
    frameworks: Sequence[str],
    strategies: Sequence[str],
    settings: Settings,
    json: Path | None = None,
    folder: Path | None = None,
    *,
    mixed: bool = False,
) -> bool:
    """Run, judge, show and write. counts: of replicas; frameworks, strategies: empty for all that
    are here; folder: for the report; mixed: whether rows of two frameworks are added.

    Whether every row is good. Raises ConfigurationError and NotInstalled before anything runs.
    """
    replicas = [counts] if isinstance(counts, int) else list(counts)
    settings.check(max(replicas))
    for n in replicas:
        grid.check(frameworks, strategies, n)
    check_output("--json", json)
    if folder is not None:
        page.check(folder)
    among = list(frameworks or _trained_with(settings))
    cells = _cells(among, strategies, replicas, settings, mixed=mixed)
    available.require(cells, frameworks, strategies)
    watch = Watch()
    outcomes = _run(cells, settings, Console(stderr=True))
    machine = watch.seen()
    rows = _judged(outcomes, settings)
    settings = replace(settings, rounds=_rounds(rows))
    console = screen(200)
    report.show(rows, settings, machine, console)
    figures = document.build(rows, settings, machine)
    if json is not None:
        write_json(json, figures)
    if folder is not None:
        console.print(Text(f"The report: {page.write(folder, figures)}"))
    return all(row.verdict.good for row in rows)


def _cells(
    among: Sequence[str],
    strategies: Sequence[str],
    replicas: Sequence[int],
    settings: Settings,
    *,
    mixed: bool,
) -> list[Cell]:
    """All that is asked for, in the order of the table."""
    found = grid.scaled(among, strategies, replicas)
    if mixed:
        found += [cell for n in replicas for cell in grid.mixed(among, n)]
    if settings.slow:
        found += grid.slowed(found, settings.slow)
    return found


def _trained_with(settings: Settings) -> list[str]:
    """The frameworks to compare where none is named: all, or the script's, for which it is run
    once under `single`."""
    if not settings.script:
        return list(KINDS)
    script = settings.script[1]
    _say(f"{script} runs once under single, to see what it trains with; --frameworks spares it.")
    with temporary_folder("dream-compare-") as root:
        outcome = scripts.run(scripts.UNKNOWN, settings, root)
        found = scripts.framework(root, Path(script))
    if isinstance(outcome, Broken) and (outcome.reason == recording.NO_BLOCK or not found):
        raise ConfigurationError(
            f"The script cannot be compared. Received: {script}. {outcome.reason}"
        )
    return [found]


def _run(cells: Sequence[Cell], settings: Settings, console: Console) -> list[tuple[Cell, Outcome]]:
    """Every cell that can run here, one after the other: together they would take each other's
    cores."""
    with temporary_folder("dream-compare-") as root:

        def run(cell: Cell) -> Outcome:
            return available.missing(cell) or runner.run(cell, settings, Path(mkdtemp(dir=root)))

        return progress.follow(cells, run, console, settings.rounds, settings.within)


def _judged(outcomes: Sequence[tuple[Cell, Outcome]], settings: Settings) -> list[Row]:
    with temporary_folder("dream-compare-") as root:
        rounding = verified.Rounding(settings, root, _say) if settings.script else None
        return judge.judge(outcomes, rounding)


def _say(line: str) -> None:
    Console(stderr=True).print(Text(line), soft_wrap=True)


def _rounds(rows: Sequence[Row]) -> int:
    """How many there were."""
    done = [len(row.outcome.rounds) for row in rows if isinstance(row.outcome, Finished)]
    return max(done, default=1)
