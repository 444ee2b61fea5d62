"""The commands beside `dream run`. Each imports what it needs when it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dream.tools.collectives.command import command as collectives
from dream.tools.compare.command import command as compare
from dream.tools.plan.command import command as plan
from dream.tools.port_check.command import command as port_check

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # rich's help would cost each start its import
    pretty_exceptions_enable=False,
    help="One word changes how a model trains: in Keras and in PyTorch.",
)
_PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True}
"""For commands that parse their own arguments."""


@app.command(context_settings=_PASSED_ON, add_help_option=False)
def run(context: typer.Context) -> None:
    """Start N ranks of a script."""
    from dream.launch.command import main

    raise typer.Exit(main(context.args))


app.command("compare", context_settings={"ignore_unknown_options": True})(compare)
app.command("collectives")(collectives)
app.command("plan")(plan)
app.command("port-check")(port_check)
checkpoint = typer.Typer(no_args_is_help=True, help="Show, check or convert checkpoints.")
app.add_typer(checkpoint, name="checkpoint")
_Folder = Annotated[Path, typer.Argument(help="a folder of checkpoints, or one of them")]


@checkpoint.command()
def show(
    folder: _Folder,
    arrays: Annotated[bool, typer.Option("--arrays", help="every array, too")] = False,
) -> None:
    """Show what the newest checkpoint holds, and which there are."""
    from dream.tools.checkpoint import show

    show(folder, arrays=arrays)


@checkpoint.command()
def check(folder: _Folder) -> None:
    """Read every byte. Exit code 1 where a checkpoint is not whole, with the file named."""
    from dream.tools.checkpoint import check

    raise typer.Exit(0 if check(folder) else 1)


@checkpoint.command()
def convert(
    source: Annotated[Path, typer.Argument(help="a checkpoint, .pt, .keras, .weights.h5, DCP")],
    destination: Annotated[Path, typer.Argument(help="a new one; a DCP folder ends in .dcp")],
    like: Annotated[
        Path | None, typer.Option(help="a .keras file of the model, for Keras's weights")
    ] = None,
) -> None:
    """Write a checkpoint of dream's as another's file, or make one of such a file."""
    from dream.tools.checkpoint import convert

    convert(source, destination, like)


@app.command()
def where(
    job: Annotated[
        int | None, typer.Argument(metavar="[JOB]", help="its number, where several run")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """Show what each rank of a running job on this host is doing."""
    from dream.tools.where.main import main

    raise typer.Exit(main(job, json=json))


@app.command(context_settings=_PASSED_ON, add_help_option=False)
def verify(context: typer.Context) -> None:
    """Hold a script of yours, unchanged, against one device."""
    from dream.tools.verify.main import main

    raise typer.Exit(main(context.args))


@app.command(context_settings=_PASSED_ON, add_help_option=False)
def profile(context: typer.Context) -> None:
    """Show where the time of a script's steps goes, on every rank."""
    from dream.tools.profile.main import main

    raise typer.Exit(main(context.args))


@app.command()
def strategies(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="its options")] = None,
) -> None:
    """List the strategies and what works here, or one's options."""
    from rich.console import Console

    from dream.tools import support

    if name is None:
        support.strategies(Console())
    else:
        support.strategy(Console(), name)


@app.command()
def env(
    json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="try no backend")] = False,
    timeout: Annotated[float, typer.Option(help="seconds that a backend may take")] = 60,
) -> None:
    """Show what works here, each backend tried, and what a bug report needs."""
    from dream.tools import env

    found, tried = env.facts(), env.look() if quick else env.try_all(timeout)
    if json:
        from json import dumps

        print(dumps(env.document(found, tried), indent=2))
    else:
        env.show(found, tried)


@app.command("build-horovod", context_settings=_PASSED_ON, add_help_option=False)
def build_horovod(context: typer.Context) -> None:
    """Build the Horovod ring for the frameworks installed, once."""
    from dream.strategies import registry

    raise typer.Exit(registry.load("dream.adapters.horovod.build:main")(context.args))
