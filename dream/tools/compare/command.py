"""`dream compare`: the same task over frameworks x strategies, in turns."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Annotated

import typer

_ROUNDS, _MANY_ROUNDS = 3, 7
_WITHIN = 570.0
"""Seconds for the rounds that nobody asked for: ten minutes, some of them spared."""
_BATCH = 64


def command(
    script: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT [ARGUMENTS]",
            help="A training script, run unchanged; else an embedded task. What is no option of "
            "dream's is the script's.",
        ),
    ] = None,
    n: Annotated[int, typer.Option("-n", help="Replicas of every row but single.")] = 2,
    task: Annotated[
        str | None,
        typer.Option(help="digits-mlp, digits-cnn, transformer or regression. Default: the first."),
    ] = None,
    frameworks: Annotated[
        str, typer.Option(help="Of torch,tensorflow,keras-torch. Default: all that are here.")
    ] = "",
    strategies: Annotated[
        str, typer.Option(help="Comma-separated, options allowed. Default: all.")
    ] = "",
    mixed: Annotated[
        bool, typer.Option("--mixed", help="Add rows whose ranks are of two frameworks.")
    ] = False,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the data. Default: the task's own.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help=f"The global one. Default: {_BATCH}.")
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            help=f"Runs of every row, in turns. Default: {_ROUNDS}, or what ends in ten minutes."
        ),
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help=f"{_MANY_ROUNDS} rounds, on 2 and on 4 replicas.")
    ] = False,
    slow: Annotated[
        str | None,
        typer.Option(
            metavar="RANK:FACTOR",
            help="Run rows of several processes once more with that rank slow: after each step it "
            "sleeps, so that the step takes FACTOR times as long.",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one run of a row may take.")] = 300,
    json: Annotated[Path | None, typer.Option(help="Write every figure to this file.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write report.html, its pictures and figures there.")
    ] = None,
) -> None:
    """Train a task in every framework under every strategy, or a script under every strategy, and
    hold each row against `single`.

    The exit code is 1 where a row broke a law or did not finish.
    """
    from dream.tools.compare import settings, tasks
    from dream.tools.compare.main import main
    from dream.tools.compare.settings import Settings, Slow, TaskJob
    from dream.tools.frameworks import TASKS

    given = settings.script_asked(
        script or [], task=task, epochs=epochs, batch_size=batch_size, mixed=mixed, slow=slow
    )
    name = tasks.DEFAULT if task is None else task
    passes = tasks.find(name).epochs if epochs is None else epochs
    turns = (_MANY_ROUNDS if thorough else _ROUNDS) if rounds is None else rounds
    within = _WITHIN if rounds is None and not thorough else inf
    job = TaskJob(passes, _BATCH if batch_size is None else batch_size, task=name)
    good = main(
        sorted({n, 2, 4}) if thorough else n,
        settings.named_items("--frameworks", frameworks),
        settings.named_items("--strategies", strategies),
        Settings(job, TASKS, timeout, turns, given, within, Slow.of(slow) if slow else None),
        json,
        report,
        mixed=mixed,
    )
    raise typer.Exit(0 if good else 1)
