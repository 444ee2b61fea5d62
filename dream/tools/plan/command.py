"""`dream plan`: memory, traffic and time of each strategy, before anything is rented."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dream.tools.plan.goodput import Reliability


def command(
    model: Annotated[
        str, typer.Argument(help="file.py:function or module:function.", show_default=False)
    ] = "",
    devices: Annotated[int, typer.Option(help="How many there will be.")] = 1,
    device_memory: Annotated[
        str | None, typer.Option(help="Of each, like 80GB. Default: the hardware's.")
    ] = None,
    hardware: Annotated[
        str,
        typer.Option(
            help="gtx-1080-ti, p100, v100-p3, v100, t4, a100-pcie, a100-p4d, a100-dgx, h100 or "
            "h200; a FILE.toml or .json of yours; `here` calibrates."
        ),
    ] = "h100",
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="The same as --hardware here.")
    ] = False,
    batch_size: Annotated[
        int | None, typer.Option(help="The global one. Default: the example batch's, or 32.")
    ] = None,
    optimizer: Annotated[str, typer.Option(help="sgd, momentum, adam or adamw.")] = "adamw",
    precision: Annotated[
        str, typer.Option(help="float32, bfloat16, mixed_bfloat16 or mixed_float16.")
    ] = "float32",
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Layers are computed again in backward; torch.")
    ] = False,
    scale: Annotated[
        str, typer.Option(help="Numbers of devices to simulate besides, like 8,64,1024.")
    ] = "",
    device_mtbf: Annotated[
        float | None, typer.Option(help="Hours from a device's failure to its next: says goodput.")
    ] = None,
    checkpoint_seconds: Annotated[
        float, typer.Option(help="That training stands still for a checkpoint.")
    ] = 60,
    checkpoint_every: Annotated[
        float | None, typer.Option(help="Seconds between checkpoints. Default: the best.")
    ] = None,
    restart_seconds: Annotated[
        float, typer.Option(help="From a failure until training goes on.")
    ] = 300,
    measure: Annotated[
        bool, typer.Option("--measure", help="Train here at 1, 2 and 4 ranks and say the errors.")
    ] = False,
    published: Annotated[
        bool, typer.Option("--published", help="Hold the formulas against published tables.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds that one step of it may take.")] = 600,
    json: Annotated[Path | None, typer.Option(help="Write every figure to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it, with --published.")] = None,
) -> None:
    """Foretell what a model needs on each device, what it sends and how long a step takes.

    The function returns a Keras model; or for PyTorch (model, batch) or (model, loss, batch).
    It is built and run without values, so it may be larger than this machine. Exit code 1 where
    nothing fits, where memory or bytes measured are not those foretold, or where a published table
    is missed.
    """
    from dream._errors import ConfigurationError
    from dream.files import sizes
    from dream.files.whole import check_output
    from dream.tools.plan.asked import PlanRequest, TrainingSpec, check_positive
    from dream.tools.plan.main import Wish, main

    check_output("--json", json)
    if published == bool(model) or (plot is not None and not published):
        raise ConfigurationError(
            "dream plan takes a model, or --published for published tables, which --plot can draw. "
            f"Received: {model or 'no model'}{' --published' * published}"
            f"{f' --plot {plot}' if plot else ''}. Run dream plan file.py:function, "
            "or dream plan --published [--plot FILE]."
        )
    if published:
        from dream.tools.plan.published import held

        raise typer.Exit(0 if held.main(json, plot) else 1)
    check_positive("--timeout", timeout)
    here = calibrate or hardware == "here"
    if recompute and (measure or here):
        raise ConfigurationError(
            "The cost of recomputation is estimated, and cannot be measured here. Received: "
            f"--recompute with {'--measure' if measure else '--hardware here'}. Remove one of them."
        )
    asked = PlanRequest(
        model,
        devices,
        None if device_memory is None else sizes.parse(device_memory),
        batch_size,
        TrainingSpec(optimizer, precision, not here, recompute),  # type: ignore[arg-type]  # checked there
        _counts(scale),
        _reliability(device_mtbf, checkpoint_seconds, restart_seconds, checkpoint_every),
    )
    done = main(asked, Wish("here" if here else hardware, measure, timeout, json))
    raise typer.Exit(0 if done else 1)


def _reliability(
    hours: float | None, checkpoint: float, restart: float, every: float | None
) -> Reliability | None:
    from dream._errors import ConfigurationError
    from dream.tools.plan.goodput import HOUR, Reliability

    if hours is not None:
        return Reliability(hours * HOUR, checkpoint, restart, every)
    if every is not None:
        raise ConfigurationError(
            f"Goodput needs the rate of device failures. Received: --checkpoint-every {every:g} "
            "without --device-mtbf. Pass --device-mtbf HOURS too."
        )
    return None


def _counts(text: str) -> tuple[int, ...]:
    from dream._errors import ConfigurationError

    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigurationError(
            f"--scale takes numbers of devices. Received: {text!r}. Write it like 8,64,1024."
        ) from error
