"""The whole verification, from the command line to the last line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from rich.console import Console
from rich.text import Text

from dream import _placing
from dream._errors import ConfigurationError
from dream._screen import screen
from dream.files.whole import write_json
from dream.launch.guard import temporary_folder
from dream.tools import recording
from dream.tools.verify import arguments, cells, document, noise, report
from dream.tools.verify.arguments import Asked
from dream.tools.verify.cause import Cause
from dream.tools.verify.causes import find
from dream.tools.verify.cells import SINGLE, Cell
from dream.tools.verify.judge import Judged, Verdict, judge
from dream.tools.verify.runs import Failed, Laboratory, Ran

Say = Callable[[str], None]


def main(argv: Sequence[str]) -> int:
    """The exit code: 0 where all are equal, 1 where not. Raises ConfigurationError where there is
    nothing to hold anything against."""
    asked = arguments.parse(argv)
    cells.check(asked.strategies or ["mirrored"], asked.n)
    console = Console(stderr=True)

    def say(line: str) -> None:
        console.print(Text(line), soft_wrap=True)

    with temporary_folder("dream-verify-") as root:
        laboratory = Laboratory(asked, root)
        single = _single(laboratory, asked, say)
        framework = cells.framework_of(single.first.framework)
        chosen = cells.chosen(asked.strategies, framework, asked.n)
        rows = [_row(cell, single, laboratory, say) for cell in chosen or [SINGLE]]
        causes = {r.cell.strategy: _causes(r, single, laboratory, say) for r in rows if not r.good}
    report.show(rows, single, causes, screen())
    if asked.json is not None:
        write_json(asked.json, document.build(rows, single, causes))
    return 0 if all(row.good for row in rows) else 1


def _single(laboratory: Laboratory, asked: Asked, say: Say) -> Ran:
    """The script on one device, which all else is held against."""
    script = asked.command[1]
    ran = laboratory.single()
    if isinstance(ran, Failed):
        raise ConfigurationError(
            f"The script fails under single, so there is nothing to hold a strategy against. "
            f"Received: {script}. {ran.brief}"
        )
    if not ran.first.framework:
        raise ConfigurationError(
            f"The script cannot be verified. Received: {script}. {recording.NO_BLOCK}"
        )
    if not ran.losses:
        raise ConfigurationError(
            f"No loss was computed. Received: {script}, which entered a block and ended. "
            f"{recording.SEEN}"
        )
    say(f"single: {len(ran.losses)} steps{report.batches(ran)}, {ran.seconds:.1f} s")
    return ran


def _row(cell: Cell, single: Ran, laboratory: Laboratory, say: Say) -> Judged:
    blocked = cells.obstacle(cell, cells.framework_of(single.first.framework))
    if blocked:
        say(f"{cell}: cannot run, {blocked}")
        return Judged(cell, Verdict.UNAVAILABLE, f"It cannot run here: {blocked}.")
    why = _placing.departs(cell.strategy)
    if why:
        said = "It is not meant to learn exactly what one device does"
        say(f"{cell}: not run, {why}")
        return Judged(cell, Verdict.INEXACT, f"{said}: {why}. dream compare judges how it learns.")
    start = monotonic()
    judged = judge(
        cell,
        laboratory.run(cell),
        single,
        lambda: noise.measure(laboratory, single, cell.parts),
    )
    say(f"{cell}: {judged.verdict}, {monotonic() - start:.1f} s")
    return judged


def _causes(row: Judged, single: Ran, laboratory: Laboratory, say: Say) -> list[Cause]:
    if row.ran is None:
        return []
    say(f"{row.cell}: looking for the cause ...")
    return find(row, single, laboratory)
