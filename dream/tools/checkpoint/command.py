"""`dream checkpoint show|check|convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Show, check or convert checkpoints.")
_Folder = Annotated[Path, typer.Argument(help="a folder of checkpoints, or one of them")]


@app.command()
def show(
    folder: _Folder,
    arrays: Annotated[bool, typer.Option("--arrays", help="every array, too")] = False,
) -> None:
    """Show what the newest checkpoint holds, and which there are."""
    from dream.tools.checkpoint.show import show

    show(folder, arrays=arrays)


@app.command()
def check(folder: _Folder) -> None:
    """Read every byte. Exit code 1 where a checkpoint is not whole, with the file named."""
    from dream.tools.checkpoint.show import check

    raise typer.Exit(0 if check(folder) else 1)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="a checkpoint, .pt, .keras, .weights.h5, DCP")],
    destination: Annotated[Path, typer.Argument(help="a new one; a DCP folder ends in .dcp")],
    like: Annotated[
        Path | None, typer.Option(help="a .keras file of the model, for Keras's weights")
    ] = None,
) -> None:
    """Write a checkpoint of dream's as another's file, or make one of such a file."""
    from dream.tools.checkpoint.convert import convert

    convert(source, destination, like)
