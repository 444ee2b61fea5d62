"""`dream compare`: run every row in turns, judge, show and write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed
from rich.text import Text

from dream._errors import ConfigurationError
from dream.files.whole import check_output, write_json
from dream.launch.guard import temporary_folder
from dream.tools.compare import document, judge, page, report, runner
from dream.tools.compare.cells import KINDS, Cell, check_cells, mixed_cells, scaled, slowed
from dream.tools.compare.judge import JudgedCell
from dream.tools.compare.outcome import Finished, Outcome, Skipped, number, together
from dream.tools.compare.settings import Settings
from dream.tools.machine import LoadWatch
from dream.tools.record import NO_BLOCK
from dream.tools.tables import screen
from dream.tools.verify.runs import Broken


def run_in_turns(
    cells: Sequence[Cell],
    run: Callable[[Cell], Outcome],
    console: Console,
    rounds: int = 1,
    within: float = inf,
) -> list[tuple[Cell, Outcome]]:
    """Run every cell once a round, there and back, and show which and how it went: so a machine
    that others slow down for a while slows all cells alike. One that did not finish is not run
    again. within: seconds; a round that would not end by then, going by those before it, is not
    begun."""
    found: dict[Cell, list[Outcome]] = {cell: [] for cell in cells}
    begun = monotonic()
    with _bar(console, len(found) * rounds) as advance:
        for number in range(rounds):
            if number and (monotonic() - begun) * (number + 1) / number > within:
                console.print(
                    Text(
                        f"Ended after {number} of {rounds} rounds: another would take more than "
                        f"{within / 60:.0f} minutes in all. --rounds {rounds} runs it."
                    )
                )
                break
            for cell in found if number % 2 == 0 else reversed(found):
                done = sum(map(len, found.values()))
                advance(done, str(cell))
                if all(isinstance(each, Finished) for each in found[cell]):
                    label = f"[{done + 1}/{len(found) * rounds}] {cell}"
                    found[cell].append(_told(run, cell, label, console))
    return [(cell, together(outcomes)) for cell, outcomes in found.items()]


def _told(run: Callable[[Cell], Outcome], cell: Cell, label: str, console: Console) -> Outcome:
    started = monotonic()
    outcome = run(cell)
    seconds = monotonic() - started
    console.print(Text(f"{label}: {in_short(outcome)} ({seconds:.1f} s)"), soft_wrap=True)
    return outcome


def in_short(outcome: Outcome) -> str:
    """Say in a few words how it went; the verdict needs all cells and comes with the table."""
    match outcome:
        case Finished():
            return f"{number(outcome.rate)} a second" if outcome.rate == outcome.rate else "done"
        case Broken(refused=said) if said:
            return f"refused, {said}"
        case Broken(impossible=said) if said:
            return f"cannot run, {said}"
        case Broken(timed_out=True):
            return "timed out"
        case Broken():
            return "crashed"
        case Skipped():
            return f"skipped, {outcome.reason}"


@contextmanager
def _bar(console: Console, total: int) -> Iterator[Callable[[int, str], None]]:
    """Shows how far we are on a terminal; elsewhere nothing."""
    columns = (
        SpinnerColumn(), BarColumn(20), MofNCompleteColumn(), Elapsed(),
        TextColumn("{task.description}"),
    )  # fmt: skip
    with Progress(
        *columns,
        console=console,
        transient=True,
        refresh_per_second=2,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("", total=total)
        yield lambda completed, text: progress.update(task, completed=completed, description=text)


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
        check_cells(frameworks, strategies, n)
    check_output("--json", json)
    if folder is not None:
        page.check(folder)
    among = list(frameworks or _trained_with(settings))
    cells = _cells(among, strategies, replicas, settings, mixed=mixed)
    runner.require(cells, frameworks, strategies)
    watch = LoadWatch()
    outcomes = _run_cells(cells, settings, Console(stderr=True))
    machine = watch.seen()
    rows = _judged(outcomes, settings)
    settings = replace(settings, rounds=_rounds(rows))
    console = screen()
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
    """Return all that is asked for, in the order of the table."""
    found = scaled(among, strategies, replicas)
    if mixed:
        found += [cell for n in replicas for cell in mixed_cells(among, n)]
    if settings.slow:
        found += slowed(found, settings.slow)
    return found


def _trained_with(settings: Settings) -> list[str]:
    """Return the frameworks to compare where none is named: all, or the script's, for which it is
    run once under `single`."""
    if not settings.script:
        return list(KINDS)
    script = settings.script[1]
    _say(f"{script} runs once under single, to see what it trains with; --frameworks spares it.")
    with temporary_folder("dream-compare-") as root:
        outcome = runner.run_script(runner.UNKNOWN, settings, root)
        found = runner.framework_of(root, Path(script))
    if isinstance(outcome, Broken) and (outcome.reason == NO_BLOCK or not found):
        raise ConfigurationError(
            f"The script cannot be compared. Received: {script}. {outcome.reason}"
        )
    return [found]


def _run_cells(
    cells: Sequence[Cell], settings: Settings, console: Console
) -> list[tuple[Cell, Outcome]]:
    """Run every cell that can run here, one after the other: together they would take each
    other's cores."""
    with temporary_folder("dream-compare-") as root:

        def run(cell: Cell) -> Outcome:
            return runner.missing(cell) or runner.run(cell, settings, Path(mkdtemp(dir=root)))

        return run_in_turns(cells, run, console, settings.rounds, settings.within)


def _judged(outcomes: Sequence[tuple[Cell, Outcome]], settings: Settings) -> list[JudgedCell]:
    with temporary_folder("dream-compare-") as root:
        rounding = judge.Rounding(settings, root, _say) if settings.script else None
        return judge.judge(outcomes, rounding)


def _say(line: str) -> None:
    Console(stderr=True).print(Text(line), soft_wrap=True)


def _rounds(rows: Sequence[JudgedCell]) -> int:
    """Return how many there were."""
    done = [len(row.outcome.rounds) for row in rows if isinstance(row.outcome, Finished)]
    return max(done, default=1)
