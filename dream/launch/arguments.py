"""`dream run`'s command line.

Parsed by argparse, unlike the other commands: it is what every start waits for.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from dream.cluster import PortRange
from dream.cluster._names import PORT_RANGE
from dream.launch.command import run_command, script_command
from dream.launch.job import Job, frameworks

DEFAULT_PORT = 29500
"""Where node 0 serves the rendezvous of several hosts, unless told otherwise."""


def main(argv: Sequence[str]) -> int:
    """Run the job; its exit code."""
    return run_command(job(argv))


def job(argv: Sequence[str]) -> Job:
    """The job that the arguments describe."""
    given = _parser().parse_args(argv)
    several = given.nnodes > 1
    return Job(
        command=script_command(given.target, given.arguments, module=given.module),
        n=given.n,
        strategy=given.strategy,
        frameworks=frameworks(given.framework),
        nnodes=given.nnodes,
        node_rank=given.node_rank,
        master_addr=given.master_addr,
        master_port=given.master_port or (DEFAULT_PORT if several else None),
        node_timeout=given.node_timeout,
        log_dir=given.log_dir,
        max_restarts=given.max_restarts,
        grace=given.grace,
        show="all" if given.all_output else "first",
        environ={**os.environ, **_ports(given.port_range)},
    )


def _ports(asked: str | None) -> dict[str, str]:
    """What `--port-range` asked for, as every rank is told."""
    return {} if asked is None else {PORT_RANGE: str(PortRange.parse(asked, "--port-range"))}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dream run",
        usage="dream run -n N [options] SCRIPT [ARGS ...]\n       "
        "dream run -n N [options] -m MODULE [ARGS ...]",
        description="Start N ranks of a script, watch them, end them together.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-n", "--nproc-per-node", "--nproc_per_node", type=int, required=True, dest="n",
        metavar="N", help="ranks on this host")  # fmt: skip
    add("--strategy", metavar="NAME[:k=v,..]",
        help="in place of the script's; `dream strategies` lists them")  # fmt: skip
    add("--framework", metavar="NAME[,NAME]",
        help="torch or tensorflow; both with a comma are dealt out by rank")  # fmt: skip
    add("--log-dir", type=Path, metavar="DIR", help="every rank's output in DIR/rankN.log")
    add("--all-output", action="store_true", help="every rank on screen, not rank 0 alone")
    add("--max-restarts", "--max_restarts", type=int, default=0, metavar="K",
        help="start all ranks again, up to K times, where one fails")  # fmt: skip
    add("--port-range", "--port_range", metavar="LOW-HIGH",
        help="the ports to listen on, beside --master-port (any free ones)")  # fmt: skip
    add("--grace", type=float, default=30.0, metavar="SECONDS",
        help="how long ranks have to end once the job is stopped by a signal (30)")  # fmt: skip
    _add_hosts(parser)
    add("-m", action="store_true", dest="module", help="SCRIPT is a module's name")
    add("target", metavar="SCRIPT", help="a Python file")
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="the script's own")
    return parser


def _add_hosts(parser: argparse.ArgumentParser) -> None:
    hosts = parser.add_argument_group(
        "several hosts", "start `dream run` on each, with one DREAM_TOKEN in the environment"
    )
    add = hosts.add_argument
    add("--nnodes", type=int, default=1, metavar="K", help="how many hosts")
    add("--node-rank", "--node_rank", type=int, default=0, metavar="I",
        help="this host's number, from 0")  # fmt: skip
    add("--master-addr", "--master_addr", default="127.0.0.1", metavar="HOST",
        help="host 0's address")  # fmt: skip
    add("--node-timeout", "--node_timeout", type=float, default=15.0, metavar="SECONDS",
        help="how long a host may be silent before it counts as lost (15); more where the "
        "network is slow")  # fmt: skip
    add("--master-port", "--master_port", type=int, metavar="PORT",
        help=f"host 0's rendezvous ({DEFAULT_PORT}; on one host any free port)")  # fmt: skip
