"""`dream collectives`: time every collective over every transport, show and write it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.text import Text

from dream._errors import NotInstalled, Unsupported, unknown
from dream.files.whole import check_output, write_json
from dream.launch.guard import temporary_folder
from dream.strategies import spec as specs
from dream.strategies.spec import FRAMEWORKS, Framework
from dream.tools import jobs, support
from dream.tools.collectives import report, worker
from dream.tools.collectives.figures import Reading, Timing, TimingSettings, rows
from dream.tools.machine import LoadWatch
from dream.tools.tables import screen

_ON_DEVICES = ("nccl",)
"""They move what lies on GPUs, and what is measured lies in the host's memory."""
Transports = dict[Framework, list[str]]
"""Framework -> its transports, in the order of the table."""


def transports(frameworks: Sequence[Framework], asked: Sequence[str]) -> Transports:
    """Return what is measured. frameworks, asked: empty for all that work here."""
    for name in asked:
        _check_reduction(name)
    found = {one: _of(one, asked) for one in frameworks or _installed()}
    if frameworks:
        for framework in frameworks:
            if not found[framework]:
                raise _no_transport(framework, asked)
    chosen = {framework: names for framework, names in found.items() if names}
    if not chosen:
        raise NotInstalled(
            "There is nothing to measure here. Received: --reduction "
            f"{','.join(asked) or 'of any kind'}, installed: {', '.join(_installed()) or 'none'}. "
            "Run: pip install 'dream-systems[torch]'; `dream strategies` lists what works."
        )
    return chosen


def _installed() -> list[Framework]:
    return [framework for framework in FRAMEWORKS if support.installed(framework)]


def _names(framework: Framework) -> tuple[str, ...]:
    return specs.find("mirrored").reductions[framework]


def _check_reduction(name: str) -> None:
    known = dict.fromkeys(name for framework in FRAMEWORKS for name in _names(framework))
    if name not in known:
        raise unknown("reduction", name, [name for name in known if name not in _ON_DEVICES])
    if name in _ON_DEVICES:
        raise Unsupported(
            f"Only transports over host memory are measured. Received: --reduction {name}. Use "
            "NVIDIA's nccl-tests for it."
        )


def _of(framework: Framework, asked: Sequence[str]) -> list[str]:
    """Return those of a framework that work here, as what was asked for by name must."""
    spec = specs.find("mirrored")
    found = []
    for name in _names(framework):
        if name in _ON_DEVICES or (asked and name not in asked):
            continue
        obstacle = support.obstacle(spec, framework, name)
        if not obstacle:
            found.append(name)
        elif asked:
            raise NotInstalled(
                f"This transport cannot run here. Received: --reduction {name} with {framework}. "
                f"Run: {obstacle}"
            )
    return found


def _no_transport(framework: Framework, asked: Sequence[str]) -> Exception:
    if not support.installed(framework):
        return NotInstalled(
            f"{framework} is not installed. Received: --framework {framework}. "
            f"Run: pip install 'dream-systems[{framework}]'"
        )
    known = [name for name in _names(framework) if name not in _ON_DEVICES]
    return Unsupported(
        f"{framework} supports none of these transports. Received: --reduction {','.join(asked)}. "
        f"Use one of: {', '.join(known)}."
    )


def run(
    framework: Framework, reductions: Sequence[str], settings: TimingSettings, folder: Path
) -> list[Timing]:
    """Time one framework: all transports in the same ranks, in turns. Raises WorkerFailed."""
    said = {"framework": framework, "reductions": reductions, "settings": asdict(settings)}
    ended = jobs.run(
        worker.__name__,
        folder,
        said,
        n=settings.n,
        frameworks=[framework],
        timeout=settings.timeout,
    )
    jobs.check(ended)
    (read,) = jobs.answers(folder, 1)
    return rows(framework, settings.n, [Reading(**each) for each in read])


@dataclass(frozen=True, slots=True)
class Selection:
    """The frameworks and transports asked for, and the files. frameworks, reductions: empty for all
    that work here."""

    frameworks: Sequence[Framework]
    reductions: Sequence[str]
    json: Path | None
    plot: Path | None


def main(asked: Selection, settings: TimingSettings) -> None:
    """Measure, show and write. What cannot be done is refused before anything runs."""
    plan = transports(asked.frameworks, asked.reductions)
    for option, path in (("--json", asked.json), ("--plot", asked.plot)):
        check_output(option, path)
    if asked.plot is not None:
        report.check_picture(asked.plot)
    watch = LoadWatch()
    console = Console(stderr=True)
    rows = [
        row
        for framework, reductions in plan.items()
        for row in _measured(framework, reductions, settings, console)
    ]
    machine = watch.seen()
    report.show(rows, settings, machine, screen())
    if asked.json is not None:
        write_json(asked.json, report.document(rows, settings, machine))
    if asked.plot is not None:
        report.draw(rows, settings, asked.plot)


def _measured(
    framework: Framework, reductions: Sequence[str], settings: TimingSettings, console: Console
) -> list[Timing]:
    said = f"{framework} over {', '.join(reductions)} on {settings.n} ranks"
    console.print(Text(f"{said} ..."), soft_wrap=True)
    start = monotonic()
    with temporary_folder("dream-collectives-") as folder:
        rows = run(framework, reductions, settings, folder)
    console.print(Text(f"{said}: {monotonic() - start:.0f} s"), soft_wrap=True)
    return rows
