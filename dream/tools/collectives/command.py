"""`dream collectives`: what each collective takes here, over each transport."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    n: Annotated[int, typer.Option("-n", help="Ranks.")] = 2,
    framework: Annotated[
        str, typer.Option(help="Of torch,tensorflow. Default: all that are here.")
    ] = "",
    reduction: Annotated[
        list[str] | None,
        typer.Option(help="A transport, as reduction= spells it; may be repeated. Default: all."),
    ] = None,
    sizes: Annotated[str, typer.Option(help="Comma-separated.")] = "4KB,200KB,1MB,100MB",
    operations: Annotated[
        str, typer.Option(help="Comma-separated; reduce, gather and scatter are others.")
    ] = "all_reduce,broadcast,all_gather,reduce_scatter,all_to_all",
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            help="Textbook all_reduce beside the transports' own: ring, naive, halving_doubling; "
            "may be repeated."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="How often each is read.")] = 9,
    timeout: Annotated[float, typer.Option(help="Seconds that a framework may take.")] = 900,
    json: Annotated[Path | None, typer.Option(help="Write every figure to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw bus bandwidth by size.")] = None,
) -> None:
    """Time every collective over every transport here, beside memcpy on all ranks at once."""
    from dream.files.sizes import parse as parse_size
    from dream.launch.job import frameworks
    from dream.tools.collectives.figures import TimingSettings
    from dream.tools.collectives.main import Selection, main

    settings = TimingSettings(
        n,
        _items([operations]),
        [parse_size(size) for size in _items([sizes])],
        _items(algorithm or []),
        rounds,
        timeout,
    )
    main(Selection(frameworks(framework or None), _items(reduction or []), json, plot), settings)


def _items(texts: list[str]) -> list[str]:
    """Of comma-separated lists, each once."""
    parts = (part.strip() for text in texts for part in text.split(","))
    return list(dict.fromkeys(part for part in parts if part))
