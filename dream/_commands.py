"""The commands beside `dream run`. Each imports what it needs when it is used."""

from __future__ import annotations

from typing import Annotated

import typer

from dream.collectives.command import command as collectives
from dream.compare.command import command as compare
from dream.porting.command import command as port_check

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
    from dream.launch.arguments import main

    raise typer.Exit(main(context.args))


app.command("compare")(compare)
app.command("collectives")(collectives)
app.command("port-check")(port_check)


@app.command()
def strategies(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="its options")] = None,
) -> None:
    """List the strategies and what works here, or one's options."""
    from rich.console import Console

    from dream import _listing

    if name is None:
        _listing.strategies(Console())
    else:
        _listing.strategy(Console(), name)


@app.command()
def env(
    json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """Show versions, devices and backends, for a bug report."""
    from dream import _here

    facts = _here.facts()
    if json:
        from json import dumps

        print(dumps(facts, indent=2))
    else:
        from rich.console import Console

        from dream import _listing

        _listing.environment(Console(), facts)


@app.command("build-horovod", context_settings=_PASSED_ON, add_help_option=False)
def build_horovod(context: typer.Context) -> None:
    """Build the Horovod ring for the frameworks installed, once."""
    from dream import _registry

    raise typer.Exit(_registry.load("dream.adapters.horovod.build:main")(context.args))
