"""The command `dream`. No framework is imported here, and no command's code before it is used."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dream._errors import ConfigurationError, DreamError
from dream.compare.command import command as compare

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # rich's help would cost each start its import
    pretty_exceptions_enable=False,
    help="One word changes how a model trains: in Keras and in PyTorch.",
)
_FORWARD = {"allow_interspersed_args": False}


@app.command(context_settings=_FORWARD)
def run(
    target: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="a Python file, or with -m a module")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="the script's own")
    ] = None,
    n: Annotated[
        int,
        typer.Option("-n", "--nproc-per-node", "--nproc_per_node", help="ranks on this host"),
    ] = ...,  # type: ignore[assignment]
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module's name")] = False,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:k=v,..]", help="in place of the script's; see `dream strategies`"
        ),
    ] = None,
    framework: Annotated[
        str | None,
        typer.Option(metavar="NAME[,NAME]", help="torch, tensorflow, or both dealt out by rank"),
    ] = None,
    log_dir: Annotated[
        Path | None, typer.Option(help="a folder for every rank's output, rankN.log")
    ] = None,
    all_output: Annotated[
        bool, typer.Option("--all-output", help="every rank on screen, not rank 0 alone")
    ] = False,
    nnodes: Annotated[int, typer.Option(help="hosts; start `dream run` on each")] = 1,
    node_rank: Annotated[int, typer.Option(help="this host's number, from 0")] = 0,
    master_addr: Annotated[str, typer.Option(help="host 0's address")] = "127.0.0.1",
    master_port: Annotated[
        int | None,
        typer.Option(
            help="where host 0 serves the rendezvous", show_default="free; 29500 on hosts"
        ),
    ] = None,
) -> None:
    """Start N ranks of a script."""
    from dream.launch.command import run_command, script_command
    from dream.launch.job import Job, frameworks

    job = Job(
        command=script_command(target, arguments or [], module=module),
        n=n,
        strategy=strategy,
        frameworks=frameworks(framework),
        nnodes=nnodes,
        node_rank=node_rank,
        master_addr=master_addr,
        master_port=29500 if master_port is None and nnodes > 1 else master_port,
        log_dir=log_dir,
        show="all" if all_output else "first",
    )
    raise typer.Exit(run_command(job))


@app.command()
def strategies(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="its options")] = None,
) -> None:
    """List the strategies and what works of them here, or one strategy's options."""
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


@app.command(
    "build-horovod",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    add_help_option=False,
)
def build_horovod(context: typer.Context) -> None:
    """Build the Horovod ring for the frameworks installed, once."""
    from dream import _registry

    raise typer.Exit(_registry.load("dream.adapters.horovod.build:main")(context.args))


app.command("compare")(compare)


def main() -> None:
    """Run the command line. An error of dream's own is one message: exit code 2 for what was
    asked for wrongly, 1 for what failed."""
    try:
        app(standalone_mode=True)
    except DreamError as error:
        print(f"dream: {error}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, ConfigurationError) else 1) from None
