"""What one sees while cells run: a line per finished cell, and a clock on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed
from rich.text import Text

from dream.compare.cells import Cell
from dream.compare.outcome import Broken, Finished, Outcome, Skipped


def follow(
    cells: Sequence[Cell], run: Callable[[Cell], Outcome], console: Console
) -> list[tuple[Cell, Outcome]]:
    """Run every cell in turn, and show which and how it went."""
    done: list[tuple[Cell, Outcome]] = []
    with _bar(console, len(cells)) as advance:
        for number, cell in enumerate(cells, 1):
            advance(number - 1, str(cell))
            started = monotonic()
            outcome = run(cell)
            seconds = monotonic() - started
            line = f"[{number}/{len(cells)}] {cell}: {summary(outcome)} ({seconds:.1f} s)"
            console.print(Text(line), soft_wrap=True)
            done.append((cell, outcome))
    return done


def summary(outcome: Outcome) -> str:
    """A few words; the verdict needs all cells and comes with the table."""
    match outcome:
        case Finished():
            return f"{outcome.first.samples_per_second:,.0f} samples/s"
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
