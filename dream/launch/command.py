"""`dream run`: its command line, the job run until its end or a signal, and its last message.

Parsed by argparse, unlike the other commands: it is what every start waits for.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import signal
import stat
import sys
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn, final

from dream._errors import ConfigurationError
from dream.cluster import PortRange, settings, tf_config
from dream.cluster.launchers import several
from dream.cluster.nodes import INDEX, NodePlace, gpus_here, node_place, pod_of
from dream.cluster.ports import LOOPBACK
from dream.files.whole import is_file
from dream.launch.ending import Outcome, explain
from dream.launch.engines.request import add_options, refuse_unread
from dream.launch.forks.foresight import imports_dream
from dream.launch.forks.warm import warm
from dream.launch.guard import heard, temporary_folder
from dream.launch.job import Job, frameworks
from dream.launch.output import SCREEN
from dream.launch.restarts import Restarts, keep_on_disk, kept_in_memory
from dream.launch.start import run

DEFAULT_PORT = 29500
"""Where node 0 serves the rendezvous of several hosts, unless told otherwise."""


def main(argv: Sequence[str]) -> int:
    """Run the job, and return its exit code."""
    parser = _parser()
    given = parser.parse_args(argv)
    if given.on or given.hosts:
        from dream.launch.engines.engine import main as elsewhere  # on use: starts are to be quick

        if isinstance(given.n, tuple) or isinstance(given.nnodes, tuple):
            raise ConfigurationError(
                "MIN:MAX works only when `dream run` is started on each host. Received: -n "
                f"{given.n}, --nnodes {given.nnodes}, and --on or --hosts. Pass one number."
            )
        refuse_nested(os.environ, 1)
        if given.on != "kubernetes":  # whose image has it
            script_command(given.target, given.arguments, module=given.module)
        return elsewhere(given, parser)
    refuse_unread(given, parser, None)
    wanted = _job(given)
    if wanted.strategy and not imports_dream(["", *wanted.command]):
        SCREEN.say(
            f"{given.target} does not import dream, nor do the modules beside it. The script opens "
            f"no strategy, so --strategy {wanted.strategy} has no effect and each rank runs the "
            "whole script on its own. Put the training in `with dream.strategy():`."
        )
    return run_command(wanted)


def job(argv: Sequence[str]) -> Job:
    """Read the job off the arguments."""
    return _job(_parser().parse_args(argv))


def _job(given: argparse.Namespace) -> Job:
    environ = dict(os.environ)
    hosts = _hosts(given, environ)
    if given.port_range is not None:
        within = PortRange.parse(given.port_range, "--port-range")
        environ[settings.PORT_RANGE] = str(within)
    return Job(
        command=script_command(given.target, given.arguments, module=given.module),
        n=_ranks_here(hosts) if given.n is None else _most(given.n),
        min_n=_least(given.n),
        min_nodes=_least(given.nnodes),
        strategy=given.strategy,
        frameworks=frameworks(given.framework),
        nnodes=hosts.nodes,
        node_rank=hosts.node,
        master_addr=hosts.master_addr or LOOPBACK,
        master_port=hosts.master_port or (DEFAULT_PORT if hosts.nodes > 1 else None),
        node_timeout=given.node_timeout,
        log_dir=given.log_dir,
        max_restarts=given.max_restarts,
        checkpoint=given.checkpoint,
        every=given.every,
        commit_every=given.commit_every,
        grow_after=given.grow_after,
        grace=given.grace,
        warm=given.warm,
        verbose=given.verbose,
        show="all" if given.all_output else "first",
        environ=environ,
    )


def _hosts(given: argparse.Namespace, environ: Mapping[str, str]) -> NodePlace:
    """Return which host this is: as the command line says, else the platform that started one
    process on each, else the only one."""
    counted = (given.nnodes, given.node_rank) != (None, None)
    place = None if counted or environ.get(settings.RENDEZVOUS) else node_place(environ)
    addr, number = given.master_addr, given.master_port
    if given.node_rank is None and isinstance(given.nnodes, int):
        place = pod_of(environ, given.nnodes)
    if place is None and not counted and environ.get(INDEX):
        raise ConfigurationError(
            "The pods of an Indexed Job may train together or each on its own, and nothing says "
            f"which. Received: {INDEX}={environ[INDEX]}, no --nnodes. Pass --nnodes K, the number "
            "of pods; or --nnodes 1."
        )
    if place is None:
        nodes = 1 if given.nnodes is None else _most(given.nnodes)
        return NodePlace("the command line", given.node_rank or 0, nodes, None, addr, number)
    if place.nodes == 1:
        return replace(place, master_addr=addr, master_port=number)
    place = replace(
        place, master_addr=addr or place.master_addr, master_port=number or place.master_port
    )
    if place.master_addr is None:
        raise ConfigurationError(
            f"{place.source} does not give the first host's address. Received: host {place.node} "
            f"of {place.nodes}. Pass --nnodes, --node-rank and --master-addr."
        )
    SCREEN.say(f"Host {place.node} of {place.nodes}, as {place.source} says.")
    return place


def _ranks_here(hosts: NodePlace) -> int:
    """Return how many ranks a host starts where nobody said -n."""
    number = hosts.ranks or gpus_here()
    if not number:
        raise ConfigurationError(
            "The number of ranks to start on this host is unknown. Received: no -n, no GPU. Set "
            "it: dream run -n N SCRIPT."
        )
    return number


@final
class _Parser(argparse.ArgumentParser):
    """Names the option that was meant."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: --"):
            known = re.findall(r"--[a-z][a-z_-]+", self.format_help())
            given = message.partition(": ")[2].partition("=")[0]
            nearest = get_close_matches(given, known, n=1)
            message += f". Did you mean {nearest[0]}?" if nearest else ""
        super().error(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="dream run",
        usage="dream run [-n N] [options] SCRIPT [ARGS ...]\n       "
        "dream run [-n N] [options] -m MODULE [ARGS ...]",
        description="Start N ranks of a script, watch them, end them together.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-n", "--nproc-per-node", "--nproc_per_node", type=_count, dest="n", metavar="N",
        help="ranks on this host (as many as it has GPUs); MIN:MAX goes on with fewer where one is "
        "lost for good")  # fmt: skip
    add("--strategy", metavar="NAME[:k=v,..]",
        help="in place of the script's; `dream strategies` lists them")  # fmt: skip
    add("--framework", metavar="NAME[,NAME]",
        help="torch or tensorflow; both with a comma are dealt out by rank")  # fmt: skip
    add("--log-dir", type=Path, metavar="DIR", help="every rank's output in DIR/rankN.log")
    add("--all-output", action="store_true", help="every rank on screen, not rank 0 alone")
    add("--max-restarts", "--max_restarts", type=int, default=0, metavar="K",
        help="start all ranks again, up to K times, where one fails")  # fmt: skip
    add("--checkpoint", type=Path, metavar="FOLDER",
        help="save training there by itself, and go on from there (`strategy.load`)")  # fmt: skip
    add("--every", type=_seconds, default=600.0, metavar="TIME",
        help="how often, in seconds or as 90s, 10m, 2h (10m)")  # fmt: skip
    add("--commit-every", "--commit_every", type=int, metavar="STEPS",
        help="how often to keep it in memory too, on every host, so that a restart loses no more "
        "than that; 0 for never (as often as costs 1 %% of the time)")  # fmt: skip
    add("--grow-after", "--grow_after", type=_seconds, default=60.0, metavar="TIME",
        help="with -n MIN:MAX: when ranks that were lost are tried again (1m, then twice as long "
        "each time that they are lost again)")  # fmt: skip
    add("--port-range", "--port_range", metavar="LOW-HIGH",
        help="the ports to listen on, beside --master-port (any free ones)")  # fmt: skip
    add("--grace", type=float, default=30.0, metavar="SECONDS",
        help="how long ranks have to end once the job is stopped by a signal (30)")  # fmt: skip
    add("--no-warm", action="store_false", dest="warm",
        help="start every rank in an interpreter of its own, not forked from a parent that has "
        "imported its framework")  # fmt: skip
    add("--verbose", action="store_true", help="say how ranks are started")
    _add_hosts(parser)
    add_options(parser)
    add("-m", action="store_true", dest="module", help="SCRIPT is a module's name")
    add("target", metavar="SCRIPT", help="a Python file")
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="the script's own")
    return parser


def _seconds(text: str) -> float:
    """Read 90, 90s, 10m or 2h."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    try:
        return float(number) * unit
    except ValueError:
        raise argparse.ArgumentTypeError(f"no time: {text!r}; give 90s, 10m or 2h") from None


def _count(text: str) -> int | tuple[int, int]:
    """Read 4, or 2:4."""
    least, colon, most = text.partition(":")
    try:
        return (int(least), int(most)) if colon else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"no number: {text!r}; give 4, or 2:4") from None


def _most(count: int | tuple[int, int]) -> int:
    return count if isinstance(count, int) else count[1]


def _least(count: int | tuple[int, int] | None) -> int | None:
    """Return MIN of MIN:MAX; None where one number was given."""
    return count[0] if isinstance(count, tuple) else None


def _add_hosts(parser: argparse.ArgumentParser) -> None:
    hosts = parser.add_argument_group(
        "several hosts", "start `dream run` on each, with one DREAM_TOKEN in the environment"
    )
    add = hosts.add_argument
    add("--nnodes", type=_count, metavar="K",
        help="how many hosts, or MIN:MAX that come and go (1, or as many as the platform says that "
        "has started one process on each)")  # fmt: skip
    add("--node-rank", "--node_rank", type=int, metavar="I",
        help="this host's number, from 0")  # fmt: skip
    add("--master-addr", "--master_addr", metavar="HOST",
        help="host 0's address")  # fmt: skip
    add("--node-timeout", "--node_timeout", type=float, default=15.0, metavar="SECONDS",
        help="how long a host may be silent before it counts as lost (15); more where the "
        "network is slow")  # fmt: skip
    add("--master-port", "--master_port", type=int, metavar="PORT",
        help=f"host 0's rendezvous ({DEFAULT_PORT}; on one host any free port)")  # fmt: skip


def refuse_nested(environ: Mapping[str, str], nnodes: int) -> None:
    """Raise ConfigurationError in a process that is one of several of a job.

    Launchers of several hosts may have been started by another, one on each: then `--nnodes` says
    so, and no second one is on this host.
    """
    ours = bool(environ.get(settings.RENDEZVOUS))
    if nnodes == 1 and not ours and (tasks := tf_config.tasks(environ)) > 1:
        raise _nested(f"TF_CONFIG, which names {tasks} tasks", "TF_CONFIG")
    for row in several(environ):
        if nnodes > 1 and environ.get(row.local_rank) in (None, "", "0") and not ours:
            continue
        size = row.size
        told = {name: environ[name] for name in (size, "RANK", row.local_rank) if environ.get(name)}
        received = ", ".join(f"{name}={value}" for name, value in told.items())
        raise _nested(f"{received}{' (of a rank of `dream run`)' if ours else ''}", size)


def _nested(received: str, name: str) -> ConfigurationError:
    return ConfigurationError(
        "Another launcher started `dream run` in each of its processes: each would start a "
        f"separate job and train its own copy. Received: {received}. Have that launcher start the "
        "script directly, which detects its rank; or for one `dream run` per host, pass --nnodes "
        f"and --node-rank. If there is no launcher, unset {name}."
    )


def _say_unread_input() -> None:
    """Say that what is on standard input is left there: ranks cannot share it."""
    with suppress(OSError):
        found = os.fstat(0)
        if stat.S_ISREG(found.st_mode):
            waiting = found.st_size > os.lseek(0, 0, os.SEEK_CUR)
        else:
            waiting = stat.S_ISFIFO(found.st_mode) and _held(0) > 0
        if waiting:
            SCREEN.say(
                "Standard input is not forwarded to the ranks, which see it empty. Pass the script "
                "a file name instead."
            )


def _held(pipe: int) -> int:
    """How many bytes wait in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def at_dashes(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments before a `--`, and those behind it."""
    given = list(argv)
    place = given.index("--") if "--" in given else len(given)
    return given[:place], given[place + 1 :]


def named_script(
    target: str, own: Sequence[str], theirs: Sequence[str], behind: Sequence[str]
) -> tuple[str, ...]:
    """Return the same for a tool's command line. own: what stands before a `--`; theirs: what of it
    is the script's. A `-m` right before the target says that it is a module."""
    words = list(theirs)
    module = "-m" in words and list(own)[list(own).index("-m") + 1 :][:1] == [target]
    if module:
        words.remove("-m")
    return script_command(target, [*words, *behind], module=module)


def script_command(target: str, arguments: list[str], *, module: bool) -> tuple[str, ...]:
    """Return what each rank's interpreter is given."""
    if module:
        return ("module", target, *arguments)
    if target.endswith(".ipynb"):
        raise ConfigurationError(
            f"A notebook is no script. Received: {target!r}. Write its cells into a Python file, "
            "as by jupyter nbconvert --to script, and name that; or call dream.launch(function, "
            "n=2) in the notebook."
        )
    if not is_file(Path(target)):
        raise ConfigurationError(
            f"No such script. Received: {target!r} in {Path.cwd()}. Pass the path of a "
            "Python file, or -m and a module."
        )
    return ("script", target, *arguments)


def _check_folder(folder: Path) -> None:
    """ConfigurationError where nothing can be saved in it, which the first save, or a job that ends
    before it, would tell too late. It is made where something is saved."""
    within = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        TemporaryDirectory(dir=within, prefix=".").cleanup()
    except OSError as error:
        raise ConfigurationError(
            f"--checkpoint names a folder in which nothing can be saved. Received: {folder} "
            f"({error.strerror}). Name one that every rank may write to, and all hosts have."
        ) from error


def run_command(job: Job) -> int:
    """Run a job until its end or a signal, again as often as it may be. Return the exit code,
    with the reason on stderr. ConfigurationError inside another launcher's rank."""
    refuse_nested(job.environ, job.nnodes)
    if job.checkpoint is not None and job.node_rank == 0:
        _check_folder(job.checkpoint)
    _say_unread_input()
    with temporary_folder("dream-job-") as folder, kept_in_memory(job) as job, warm(job) as job:
        job = replace(job, environ={**job.environ, settings.SNAPSHOTS: str(folder)})
        outcome = _run(job)
        restarts = Restarts()
        while (again := restarts.next(job, outcome)) is not None:
            job = again
            outcome = _run(job)
        if outcome.exit_code:
            keep_on_disk(job)
    if outcome.stopped in (signal.SIGTERM, signal.SIGUSR1) and job.checkpoint is not None:
        return settings.GO_ON_LATER
    return outcome.exit_code


def _run(job: Job) -> Outcome:
    outcome = run(job, lambda events: heard(events.put))
    message = explain(outcome, outcome.shown)
    if message:
        SCREEN.say(message)
    return outcome
