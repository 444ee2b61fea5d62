"""`dream compare`: the same task over frameworks x strategies, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    n: Annotated[int, typer.Option("-n", help="Replicas of every row but single.")] = 2,
    frameworks: Annotated[
        str, typer.Option(help="Of torch,tensorflow,keras-torch. Default: all that are here.")
    ] = "",
    strategies: Annotated[
        str, typer.Option(help="Comma-separated, options allowed. Default: all.")
    ] = "",
    mixed: Annotated[
        bool, typer.Option("--mixed", help="Add rows whose ranks are of two frameworks.")
    ] = False,
    epochs: Annotated[int, typer.Option(help="Passes over the digits.")] = 3,
    batch_size: Annotated[int, typer.Option(help="The global one.")] = 64,
    timeout: Annotated[float, typer.Option(help="Seconds that one row may take.")] = 300,
    json: Annotated[Path | None, typer.Option(help="Write every figure to this file.")] = None,
) -> None:
    """Train the digits in every framework under every strategy, and hold each against `single`.

    The exit code is 1 where a row broke a law or did not finish.
    """
    from dream.compare.cells import split
    from dream.compare.main import main
    from dream.compare.settings import DIGITS, Job, Settings

    settings = Settings(Job(epochs, batch_size), DIGITS, timeout)
    good = main(n, split(frameworks), split(strategies), settings, json, mixed=mixed)
    raise typer.Exit(0 if good else 1)
