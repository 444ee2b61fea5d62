"""What `dream run --on` and `--hosts` are given, and the command line that goes on to each host."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dream._errors import ConfigurationError
from dream.files.whole import is_file

ENGINES = ("ssh", "slurm", "mpi", "kubernetes", "ray")
SIGNAL_BEFORE = 120

_VALUES = ("strategy", "framework", "log_dir", "port_range", "checkpoint", "node_timeout", "grace",
           "every", "commit_every", "max_restarts", "master_port")  # fmt: skip
_FLAGS = ("all_output",)
"""Options that mean on each host what they mean here."""

_HOST = re.compile(r"(?P<name>\[[^\]]+\]|[^:\s]+)(?::(?P<count>\d+))?")
_SLOTS = re.compile(r"(?P<name>\S+)\s+(?:slots=)?(?P<count>\d+)\b.*")


@dataclass(frozen=True, slots=True)
class Host:
    """A host of `--hosts`.

    name: as ssh takes it, with a user or without; count: ranks there, None where nobody says.
    """

    name: str
    count: int | None = None

    @property
    def address(self) -> str:
        """The name without the user."""
        return self.name.rpartition("@")[2]


@dataclass(frozen=True, slots=True)
class Request:
    """A job for an engine.

    n: ranks on each host; None for as many as it has GPUs. nnodes: hosts. hosts: their names,
    where the user gave them. options: of `dream run`, as each host's is to be given them. script:
    the end of the command line. given: the whole of it, for what one engine alone reads.
    """

    n: int | None
    nnodes: int
    hosts: tuple[Host, ...]
    options: tuple[str, ...]
    script: tuple[str, ...]
    given: argparse.Namespace

    @property
    def name(self) -> str:
        """The job's: as asked for, else after the script, in letters that every engine takes."""
        stem = Path(self.given.target).stem
        return str(self.given.job_name or re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-"))

    def ranks(self, why: str) -> int:
        """Return the ranks of a host, for an engine that must know them beforehand."""
        if self.n is None:
            raise ConfigurationError(
                f"The number of ranks per host must be given: {why}. Received: no -n. Pass -n N."
            )
        return self.n

    def command(self, *place: str) -> list[str]:
        """Return `dream run` on one host, whose place is said by options or by a platform."""
        n = [] if self.n is None else ["-n", str(self.n)]
        return ["run", *n, *place, *self.options, *self.script]


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "somebody else's engine", "the same command line, started elsewhere: docs/starting.md"
    )
    add = group.add_argument
    add("--on", choices=ENGINES, help="write and start the job there")
    add("--hosts", metavar="A:N,B:N", help="hosts and their ranks, or a file of them: by ssh")
    add("--dry-run", action="store_true", help="show what would be started")
    add("--time", dest="engine_time", metavar="TIME", help="slurm: as it takes it, 2:00:00 say")
    add("--signal-before", type=int, default=SIGNAL_BEFORE, metavar="SECONDS",
        help=f"slurm: save so long before the end of the time ({SIGNAL_BEFORE})")  # fmt: skip
    add("--gpus", type=int, metavar="N", help="slurm, kubernetes, ray: GPUs a host")
    add("--job-name", metavar="NAME", help="the job's (the script's)")
    add("--image", metavar="IMAGE", help="kubernetes: the container's, with dream in it")
    add("--jobset", action="store_true", help="kubernetes: a JobSet, for want of Kubeflow Trainer")
    add("--volume", metavar="CLAIM:PATH",
        help="kubernetes, --jobset: a PersistentVolumeClaim, and its place in pods")  # fmt: skip
    add("--address", metavar="ADDRESS", help="ray: the cluster's (auto)")
    add("--engine-option", action="append", default=[], metavar="TEXT",
        help="one more for ssh, sbatch or mpirun: --engine-option=--partition=gpu")  # fmt: skip


_READ = {
    None: (),
    "ssh": ("engine_option",),
    "slurm": ("engine_time", "signal_before", "gpus", "job_name", "engine_option"),
    "mpi": ("engine_option",),
    "kubernetes": ("gpus", "job_name", "image", "jobset", "volume"),
    "ray": ("gpus", "address"),
}
"""Which of their options each engine reads."""

_LESS = {
    "slurm": ("master_addr",),
    "mpi": (
        "log_dir",
        "all_output",
        "max_restarts",
        "port_range",
        "grace",
        "node_timeout",
        "commit_every",
    ),
    "kubernetes": ("master_addr",),
    "ray": ("master_addr", "master_port", "port_range", "node_timeout", "commit_every"),
}
"""Options of `dream run` that an engine sees to itself, or knows nothing of."""


def refuse_unread(
    given: argparse.Namespace, parser: argparse.ArgumentParser, engine: str | None
) -> None:
    """Raise for options that the engine, or the want of one, would ignore."""
    its_own = {name for names in _READ.values() for name in names}
    unread = its_own - {*_READ[engine]} | {*_LESS.get(engine or "", ())}
    told = [name for name in unread if getattr(given, name) != parser.get_default(name)]
    if engine is None and given.dry_run:
        told.append("dry_run")
    if told:
        words = ", ".join(sorted(_option(name) for name in told))
        whose = f"--on {engine}" if engine else "no --on"
        raise ConfigurationError(
            f"This option has no effect here. Received: {words}, {whose}. Remove "
            f"it{', or say it to the engine itself' if engine else ', or give --on ENGINE'}."
        )


def _option(name: str) -> str:
    return "--" + name.removeprefix("engine_" if name == "engine_time" else "").replace("_", "-")


def request(given: argparse.Namespace, parser: argparse.ArgumentParser) -> Request:
    """Read the request off the parsed command line. parser: knows what each option is by itself."""
    hosts = _hosts(given.hosts) if given.hosts else ()
    n = _ranks_each(hosts, given)
    nnodes = given.nnodes or len(hosts) or 1
    if hosts and nnodes != len(hosts):
        raise ConfigurationError(
            f"--nnodes and --hosts must agree. Received: --nnodes {nnodes}, {len(hosts)} hosts. "
            "Remove --nnodes."
        )
    if given.node_rank is not None:
        raise ConfigurationError(
            f"The engine numbers the hosts. Received: --node-rank {given.node_rank} with --on or "
            "--hosts. Remove it."
        )
    module = ("-m",) if given.module else ()
    script = (*module, given.target, *given.arguments)
    return Request(n, nnodes, hosts, _options(given, parser), script, given)


def _options(given: argparse.Namespace, parser: argparse.ArgumentParser) -> tuple[str, ...]:
    found: list[str] = []
    for name in _VALUES:
        value = getattr(given, name)
        if value != parser.get_default(name):
            here = isinstance(value, Path) and given.on != "kubernetes"
            text = str(value.absolute() if here else value)
            found += [f"--{name.replace('_', '-')}", text]
    found += [f"--{name.replace('_', '-')}" for name in _FLAGS if getattr(given, name)]
    return tuple(found)


def _hosts(text: str) -> tuple[Host, ...]:
    """Read "a:4,b:4", or a file with a host a line: "a:4", "a slots=4", "a 4" or "a"."""
    path = Path(text)
    if is_file(path):
        lines = path.read_text(encoding="utf-8").splitlines()
        entries = [line.partition("#")[0].strip() for line in lines]
    else:
        entries = [entry.strip() for entry in text.split(",")]
    hosts = tuple(_host(entry) for entry in entries if entry)
    if not hosts or len({host.name for host in hosts}) != len(hosts):
        raise ConfigurationError(
            f"--hosts names {'a host twice' if hosts else 'no host'}. Received: {text!r}. Pass "
            "A:4,B:4, or a file with one host per line."
        )
    return hosts


def _host(entry: str) -> Host:
    found = _SLOTS.fullmatch(entry) or _HOST.fullmatch(entry)
    # a name that began with a dash would be an option of ssh's
    if found is None or entry.startswith("-") or "/" in entry:
        raise ConfigurationError(
            f"--hosts is neither a list of hosts nor a file. Received: {entry!r}. Pass A:4,B:4, or "
            "a file with one host per line (A:4, or A slots=4)."
        )
    count = found["count"]
    return Host(found["name"].strip("[]"), int(count) if count else None)


def _ranks_each(hosts: Sequence[Host], given: argparse.Namespace) -> int | None:
    """Return how many ranks each host starts: equally many."""
    counts = {host.count if host.count is not None else given.n for host in hosts} or {given.n}
    if len(counts) > 1 or (given.n is not None and counts != {given.n}):
        told = ", ".join(f"{host.name}:{host.count}" for host in hosts)
        raise ConfigurationError(
            f"Every host must start the same number of ranks. Received: {told}, -n {given.n}. Use "
            "the same number for each host."
        )
    (number,) = counts
    if number is not None and number < 1:
        raise ConfigurationError(
            f"A host must start at least 1 rank. Received: {number}. Pass -n N, or HOST:N."
        )
    return None if number is None else int(number)


def interpreter() -> str:
    """Return the Python that runs here, and is to run on every host."""
    return sys.executable
