"""What launchers of clusters tell in ways of their own: lists of hosts, and who is on which."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Sequence

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
        f"This is not a valid list of hosts. Received: {text!r}. Write it like node[01-04,7],other."
    )


def counts_of(text: str, name: str) -> list[int]:
    """Return the tasks of each host, from "2(x2),1"."""
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise ConfigurationError(
                f"{name} is not a valid list of tasks. Received: {name}={text!r}. Correct it, or "
                "start with `dream run`."
            )
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def slurm_spot(row: Launcher, environ: Environ, rank: int, world_size: int) -> Spot:
    """A task's place in its step: hosts may have unequally many, dealt out in any order."""
    require(environ, (row.rank, row.size, row.local_rank, row.node, _TASKS), row.source)
    counts = counts_of(environ[_TASKS], _TASKS)
    node = integer(environ, row.node, row.source)
    if node >= len(counts) or sum(counts) != world_size:
        raise ConfigurationError(
            f"{row.source} describes two different job steps. Received: task {rank} of "
            f"{world_size}, {row.node}={node}, {_TASKS}={environ[_TASKS]}. Start the script "
            "directly with srun."
        )
    local = integer(environ, row.local_rank, row.source)
    return _asked(local, counts[node], node, len(counts), f"node {node}")


def _asked(local: int, size: int, node: int, nodes: int, host: str = "") -> Spot:
    """A place among others that the ranks are to be asked for, save on one host."""
    return Spot(local, size, node, nodes, (host or socket.gethostname()) if nodes > 1 else "")


def slurm_first(environ: Environ) -> str | None:
    """Rank 0's host: the first of the step's, not of the job's, nor where srun was typed."""
    hosts = environ.get("SLURM_STEP_NODELIST")
    return names_of(hosts)[0] if hosts else None


def allocated_first(environ: Environ) -> str | None:
    """The first host that a batch system has given to the job, if there is one."""
    for read in (_first_of_pbs, slurm_job_first, lsf_first, _azure_first):
        host = read(environ)
        if host:
            return host
    return None


def slurm_job_first(environ: Environ) -> str | None:
    hosts = environ.get("SLURM_JOB_NODELIST")
    return names_of(hosts)[0] if hosts else None


def _first_of_pbs(environ: Environ) -> str | None:
    return next(iter(lines_of(environ, _PBS_HOSTS)), None)


def _azure_first(environ: Environ) -> str | None:
    return environ.get("AZ_BATCH_MASTER_NODE", "").rpartition(":")[0] or None


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
    """An MPI rank's place. MPI tells its place on its host, and no host's number."""
    require(environ, (row.rank, row.size, row.local_rank, row.local_size), row.source)
    local = integer(environ, row.local_rank, row.source)
    size = integer(environ, row.local_size, row.source, 1)
    return _asked(local, size, rank // size, -(-world_size // size))


def flux_spot(row: Launcher, environ: Environ, rank: int, world_size: int) -> Spot:
    """Flux tells how many hosts there are, and not how many ranks this one has."""
    require(environ, (row.rank, row.size, row.local_rank, row.nodes), row.source)
    nodes = integer(environ, row.nodes, row.source, 1)
    return _among(integer(environ, row.local_rank, row.source), rank, world_size, nodes)


def lsf_spot(row: Launcher, environ: Environ, rank: int, world_size: int) -> Spot:
    """jsrun's place: hosts are in the job's rank file, the launching one first."""
    require(environ, (row.rank, row.size, row.local_rank), row.source)
    nodes = len({*lines_of(environ, _LSF_RANKS)[1:]}) or 1
    return _among(integer(environ, row.local_rank, row.source), rank, world_size, nodes)


def _among(local: int, rank: int, world_size: int, nodes: int) -> Spot:
    """The place of a rank that is told how many hosts there may be."""
    nodes = min(nodes, world_size)
    size = max(-(-world_size // nodes), local + 1)
    return _asked(local, size, min(rank // size, nodes - 1), nodes)


def layout_of(told: Sequence[tuple[str, int]], source: str) -> tuple[int, ...]:
    """Return each rank's host, numbered as they first come, from its host's name and local rank.
    ConfigurationError where names do not tell hosts apart."""
    names = [name for name, _ in told]
    hosts = list(dict.fromkeys(names))
    for host in hosts:
        locals_ = sorted(local for name, local in told if name == host)
        if locals_ != list(range(len(locals_))):
            raise ConfigurationError(
                "Several hosts have the same host name, so it is unclear which ranks share a host. "
                f"Received from {source}: local ranks {', '.join(map(str, locals_))} on {host}. "
                "Give each host (or container) a unique host name."
            )
    return tuple(map(hosts.index, names))


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
