"""Fit each table's one constant on its first row, foretell the others, and say how far off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import final

from rich.console import Console
from rich.text import Text

from dream.files.whole import write_json
from dream.tools.collectives.report import check_picture
from dream.tools.plan.published.tables import Table, tables
from dream.tools.tables import note, screen, show, table

MEDIAN, WORST = 0.10, 0.25
"""Of the errors of a table's other rows, at most."""
_HALVINGS = 50


@final
@dataclass(frozen=True, slots=True)
class HeldTable:
    label: str
    published: float
    foretold: float

    @property
    def error(self) -> float:
        return self.foretold / self.published - 1.0


@final
@dataclass(frozen=True, slots=True)
class FittedTable:
    """A published table beside what a plan says of it, by a constant that one row gives.

    rows: the first one is what the constant was fitted on.
    """

    table: Table
    constant: float
    rows: Sequence[HeldTable]

    @property
    def errors(self) -> list[float]:
        return [abs(row.error) for row in self.rows[1:]]

    @property
    def pairs(self) -> tuple[int, int]:
        """How many pairs of rows are in the order that was published, and how many have one."""
        told = [
            (first.published - second.published) * (first.foretold - second.foretold) > 0
            for first, second in combinations(self.rows, 2)
            if first.published != second.published
        ]
        return sum(told), len(told)

    @property
    def within(self) -> bool:
        return median(self.errors) <= MEDIAN and max(self.errors) <= WORST


def hold(one: Table) -> FittedTable:
    """All forecasts grow with their constant."""
    least, most, first = 0.0, 1.0, one.rows[0]
    for _ in range(_HALVINGS):
        constant = (least + most) / 2
        if first.foretell(constant) < first.published:
            least = constant
        else:
            most = constant
    return FittedTable(
        one,
        constant,
        [HeldTable(row.label, row.published, row.foretell(constant)) for row in one.rows],
    )


def main(json: Path | None, plot: Path | None, console: Console | None = None) -> bool:
    """Show and write. Whether every table is within the bounds."""
    if plot is not None:
        check_picture(plot)
    found, console = [hold(one) for one in tables()], console or screen()
    for held in found:
        _show(held, console)
    note(
        console,
        "Simulated, not measured. Each table has one constant, fitted on its first row; all other "
        f"figures are those of every plan. Bounds: half of the rows within {MEDIAN:.0%}, all "
        f"within {WORST:.0%}.",
    )
    if json is not None:
        write_json(json, {"tables": [_document(held) for held in found]})
    if plot is not None:
        _draw(found, plot)
    return all(held.within for held in found)


def _show(held: FittedTable, console: Console) -> None:
    console.print(Text(held.table.title, style="bold"), soft_wrap=True)
    rows = table("", "published", "foretold", "error", words=[""])
    for number, row in enumerate(held.rows):
        error = f"{row.error:+.1%}" if number else "fitted"
        rows.add_row(row.label, f"{row.published:g}", f"{row.foretold:.1f}", error)
    show(console, rows)
    right, pairs = held.pairs
    verdict = "" if held.within else " Out of bounds."
    note(
        console,
        f"In {held.table.unit}, from {held.table.source}. Fitted: {held.table.constant}, "
        f"{held.constant:.2f}. Besides: {held.table.rests_on}. Error: {median(held.errors):.1%} in "
        f"the middle, {max(held.errors):.1%} at most; {right} of {pairs} pairs in order.{verdict}",
    )
    console.print()


def _document(held: FittedTable) -> dict[str, object]:
    """Return what `--json` writes of a table."""
    right, pairs = held.pairs
    return {
        "title": held.table.title,
        "unit": held.table.unit,
        "source": held.table.source,
        "constant": held.constant,
        "rows": [asdict(row) | {"error": row.error} for row in held.rows],
        "median_error": median(held.errors),
        "worst_error": max(held.errors),
        "pairs_in_order": right,
        "pairs": pairs,
        "within": held.within,
    }


def _draw(found: Sequence[FittedTable], path: Path) -> None:
    """Draw what was foretold over what was published, a panel a table."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(found), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    for held, panel in zip(found, figure.subplots(1, len(found), squeeze=False).flat, strict=True):
        published = [row.published for row in held.rows]
        foretold = [row.foretold for row in held.rows]
        ends = [0.9 * min(published + foretold), 1.1 * max(published + foretold)]
        panel.plot(ends, ends, color="0.5", linewidth=1)
        panel.fill_between(
            ends, [(1 - WORST) * end for end in ends], [(1 + WORST) * end for end in ends],
            color="0.9",
        )  # fmt: skip
        panel.plot(published[1:], foretold[1:], "o", color="#0072B2")
        panel.plot(published[:1], foretold[:1], "s", color="#E69F00")
        panel.set(xlim=ends, ylim=ends, xlabel=f"published, {held.table.unit}")
        panel.set_title(held.table.title.replace(", ", ",\n", 1), fontsize="small")
    figure.axes[0].set_ylabel("foretold")
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "dream"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
