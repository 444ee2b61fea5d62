"""The whole measurement, from the names to the last line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.text import Text

from dream._screen import screen
from dream._spec import Framework
from dream.files.whole import check_output, write_json
from dream.launch.environment import cores
from dream.launch.guard import temporary_folder
from dream.tools.collectives import document, plot, report, runner, transports
from dream.tools.collectives.figures import Machine, Row
from dream.tools.collectives.settings import Settings


@dataclass(frozen=True, slots=True)
class Asked:
    """What is wanted of whom. frameworks, reductions: empty for all that work here."""

    frameworks: Sequence[Framework]
    reductions: Sequence[str]
    json: Path | None
    plot: Path | None


def main(asked: Asked, settings: Settings) -> None:
    """Measure, show and write. What cannot be done is refused before anything runs."""
    plan = transports.plan(asked.frameworks, asked.reductions)
    for option, path in (("--json", asked.json), ("--plot", asked.plot)):
        check_output(option, path)
    if asked.plot is not None:
        plot.check(asked.plot)
    machine = Machine(cores(), os.getloadavg()[0])
    console = Console(stderr=True)
    rows = [
        row
        for framework, reductions in plan.items()
        for row in _measured(framework, reductions, settings, console)
    ]
    report.show(rows, settings, machine, screen(200))
    if asked.json is not None:
        write_json(asked.json, document.build(rows, settings, machine))
    if asked.plot is not None:
        plot.draw(rows, settings, asked.plot)


def _measured(
    framework: Framework, reductions: Sequence[str], settings: Settings, console: Console
) -> list[Row]:
    said = f"{framework} over {', '.join(reductions)} on {settings.n} ranks"
    console.print(Text(f"{said} ..."), soft_wrap=True)
    start = monotonic()
    with temporary_folder("dream-collectives-") as folder:
        rows = runner.run(framework, reductions, settings, folder)
    console.print(Text(f"{said}: {monotonic() - start:.0f} s"), soft_wrap=True)
    return rows
