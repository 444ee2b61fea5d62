"""What launchers of clusters tell in ways of their own: lists of hosts, and who is on which."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator

from dream._errors import ConfigurationError
from dream.cluster.launcher import Environ, Launcher, Spot
from dream.cluster.settings import integer, require

_TASKS = "SLURM_STEP_TASKS_PER_NODE"
_PBS_HOSTS = "PBS_NODEFILE"
_LSF_RANKS = "LSB_DJOB_RANKFILE"
_HYDRAS = ("hydra_pmi_proxy", "hydra_bstrap_proxy", "pmi_proxy")
_MOST_PARENTS = 64


def names_of(text: str) -> list[str]:
    """Return the hosts of a list such as "node[001-003,7],gpu-a": zeros and several brackets in one
    name as they are written. ConfigurationError where it is none."""
    names: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text):
        names += _expanded(part, text)
    return names


def _expanded(part: str, text: str) -> Iterator[str]:
    before, bracket, rest = part.partition("[")
    inside, closed, after = rest.partition("]")
    if not bracket:
        if not part or "]" in part:
            raise _no_list(text)
        yield part
        return
    if not closed or not inside:
        raise _no_list(text)
    for number in _numbers(inside, text):
        yield from (
            f"{before}{number}{tail}" for tail in (_expanded(after, text) if after else [""])
        )


def _numbers(ranges: str, text: str) -> Iterator[str]:
    for item in ranges.split(","):
        first, dash, last = item.partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal()):
            raise _no_list(text)
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def _no_list(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"This is no list of hosts. Received: {text!r}. Write it like node[01-04,7],other."
    )


def counts_of(text: str, name: str) -> list[int]:
    """Return the tasks of each host, from "2(x2),1"."""
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise ConfigurationError(
                f"{name} is no list of tasks. Received: {name}={text!r}. Correct it, or start with "
                "`dream run`."
            )
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def slurm_spot(row: Launcher, environ: Environ, rank: int, world_size: int) -> Spot:
    """A task's place in its step: hosts may have unequally many."""
    require(environ, (row.local_rank, row.node, _TASKS), row.source)
    counts = counts_of(environ[_TASKS], _TASKS)
    node = integer(environ, row.node, row.source)
    if node >= len(counts) or sum(counts) != world_size:
        raise ConfigurationError(
            f"{row.source} tells two different steps. Received: task {rank} of {world_size}, "
            f"{row.node}={node}, {_TASKS}={environ[_TASKS]}. Start the script by srun itself."
        )
    return Spot(integer(environ, row.local_rank, row.source), counts[node], node, len(counts))


def slurm_first(environ: Environ) -> str | None:
    """Rank 0's host: the first of the step's, not of the job's, nor where srun was typed."""
    hosts = environ.get("SLURM_STEP_NODELIST")
    return names_of(hosts)[0] if hosts else None


def allocated_first(environ: Environ) -> str | None:
    """The first host that a batch system has given to the job, if there is one."""
    for read in (_first_of_pbs, slurm_job_first, lsf_first):
        host = read(environ)
        if host:
            return host
    return None


def slurm_job_first(environ: Environ) -> str | None:
    hosts = environ.get("SLURM_JOB_NODELIST")
    return names_of(hosts)[0] if hosts else None


def _first_of_pbs(environ: Environ) -> str | None:
    return next(iter(lines_of(environ, _PBS_HOSTS)), None)


def lsf_first(environ: Environ) -> str | None:
    """The second line: the first one is the host that the job is launched from."""
    return next(iter(lines_of(environ, _LSF_RANKS)[1:]), None)


def lines_of(environ: Environ, name: str) -> list[str]:
    """Return the lines of the file that a variable names; none where there is no such file."""
    path = environ.get(name)
    if not path or not os.path.isfile(path):  # noqa: PTH113 - pathlib's import costs each start
        return []
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        return [line.strip() for line in file if line.strip()]


def mpi_spot(row: Launcher, environ: Environ, rank: int, world_size: int) -> Spot:
    """An MPI rank's place. MPI tells its place on its host and no host's number: ranks lie over the
    hosts in blocks, unless it was told otherwise, which its place on the host then shows."""
    require(environ, (row.local_rank, row.local_size), row.source)
    local = integer(environ, row.local_rank, row.source)
    size = integer(environ, row.local_size, row.source, 1)
    nodes = -(-world_size // size)
    if environ.get(row.nodes):
        nodes = integer(environ, row.nodes, row.source, 1)
    return Spot(local, size, rank // size, nodes)


def lsf_spot(row: Launcher, environ: Environ, rank: int, world_size: int) -> Spot:
    """jsrun's place: hosts are in the job's rank file, the launching one first."""
    require(environ, (row.local_rank,), row.source)
    hosts = list(dict.fromkeys(lines_of(environ, _LSF_RANKS)[1:])) or [socket.gethostname()]
    own = socket.gethostname()
    named = [host for host in hosts if host.partition(".")[0] == own.partition(".")[0]]
    if world_size % len(hosts) or (len(hosts) > 1 and not named):
        raise ConfigurationError(
            f"{row.source} does not tell which host this is. Received: rank {rank} of "
            f"{world_size}, this host {own}, hosts {', '.join(hosts)}. Start equally many ranks on "
            "each host."
        )
    local = integer(environ, row.local_rank, row.source)
    node = hosts.index(named[0]) if len(hosts) > 1 else 0
    return Spot(local, world_size // len(hosts), node, len(hosts))


def one_a_host(row: Launcher, environ: Environ, rank: int, world_size: int) -> Spot:
    """The place of a process that has a host to itself."""
    del row, environ
    return Spot(0, 1, rank, world_size)


def jax_first(environ: Environ) -> str | None:
    return environ.get("JAX_COORDINATOR_ADDRESS", "").partition(":")[0] or None


def hydra_job() -> tuple[str, ...]:
    """Name a job of MPICH's: the address of its launcher, which each host's proxy was started with;
    empty where no such proxy is above this process."""
    for command in _commands_above():
        if os.path.basename(command[0]) in _HYDRAS:  # noqa: PTH119
            for option in ("--control-port", "--upstream-port"):
                if option in command[:-1]:
                    return (command[command.index(option) + 1],)
    return ()


def _commands_above() -> Iterator[list[str]]:
    """The command lines of this process's parents, nearest first; none where /proc is not."""
    process = os.getppid()
    for _ in range(_MOST_PARENTS):
        try:
            with open(f"/proc/{process}/cmdline", "rb") as file:  # noqa: PTH123
                words = file.read().decode(errors="replace").split("\0")
            with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                process = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return
        if words[0]:
            yield words
        if process <= 1:
            return
