"""`dream where [JOB]`."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    job: Annotated[
        int | None, typer.Argument(metavar="[JOB]", help="its number, where several run")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """Show what each rank of a running job on this host is doing."""
    from dream.tools.where.main import main

    raise typer.Exit(main(job, json=json))
