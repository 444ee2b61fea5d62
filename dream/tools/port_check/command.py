"""`dream port-check`: is one model the other's port?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def command(
    old: Annotated[str, typer.Argument(help="Builds a model: file.py:function, module:function.")],
    new: Annotated[str, typer.Argument(help="Builds its port, in either framework.")],
    batch: Annotated[Path, typer.Option(help="A .npz with x (or x0, x1, ...) and perhaps y.")],
    map: Annotated[
        Path | None, typer.Option(help="JSON: {old name: new name} of layers or parameters.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Relative. Default: by dtype and depth.")
    ] = None,
    loss: Annotated[str, typer.Option(help="mean_squared or cross_entropy.")] = "mean_squared",
    seed: Annotated[int, typer.Option(help="Of the target, where there is no y.")] = 0,
    as_is: Annotated[
        bool, typer.Option("--as-is", help="Do not turn inputs to a model's channels-first.")
    ] = False,
    copy: Annotated[
        bool, typer.Option(help="Give the new model the old one's weights, or compare its own.")
    ] = True,
    shake: Annotated[
        bool, typer.Option(help="Redraw parameters that are all one number, in both models.")
    ] = True,
    old_backend: Annotated[str | None, typer.Option(help="Keras's, for the old model.")] = None,
    new_backend: Annotated[str | None, typer.Option(help="Keras's, for the new model.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one answer may take.")] = 300,
    json: Annotated[Path | None, typer.Option(help="Write every figure to this file.")] = None,
) -> None:
    """Hold a model against its port: layers, outputs, gradients, hyper-parameters.

    The exit code is 0 where they are equal, 1 where they differ or one cannot be run, 2 where
    their layers do not match.
    """
    from dream._errors import Unsupported
    from dream.files.whole import check_output, write_json
    from dream.tools.port_check import check, report
    from dream.tools.port_check.check import port_check

    check_output("--json", json)
    try:
        found = port_check(
            old,
            new,
            check.read_batch(batch),
            map=check.read_mapping(map),
            tolerance=tolerance,
            loss=loss,
            seed=seed,
            as_is=as_is,
            copy=copy,
            shake=shake,
            old_backend=old_backend,
            new_backend=new_backend,
            timeout=timeout,
        )
    except Unsupported as error:  # a layer that nothing can be matched with
        print(f"dream: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    report.show(found)
    if json is not None:
        write_json(json, report.document(found))
    raise typer.Exit(0 if found.equal else 1)
