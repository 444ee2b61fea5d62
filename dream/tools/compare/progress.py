"""What one sees while cells run: a line per finished cell, and a clock on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed
from rich.text import Text

from dream.tools.compare.cells import Cell
from dream.tools.compare.outcome import Broken, Finished, Outcome, Skipped, together
from dream.tools.compare.spread import number


def follow(
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
    console.print(Text(f"{label}: {summary(outcome)} ({seconds:.1f} s)"), soft_wrap=True)
    return outcome


def summary(outcome: Outcome) -> str:
    """A few words; the verdict needs all cells and comes with the table."""
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
