"""`dream run --on mpi`: mpirun starts every rank itself, Open MPI's or MPICH's (and Intel's).

Placing, output and ends are mpirun's. What `dream run` was asked for, and the token of several
hosts, go to the ranks in their environment, of which mpirun is told the names alone.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn, final

from dream._errors import ConfigurationError
from dream.cluster import settings
from dream.cluster.launcher import MASTER
from dream.cluster.ports import LOOPBACK, own_address, port_of
from dream.launch import child
from dream.launch.engines.engine import LaunchEngine, carried, program, requests
from dream.launch.engines.request import Request, interpreter
from dream.launch.joined.threads import RANKS_HERE

_HOW = "Install Open MPI (openmpi-bin), MPICH (mpich) or Intel MPI; or start ranks with --hosts."


@final
class Mpi(LaunchEngine):
    def written(self, request: Request) -> str:
        values = _variables(request)
        names = " ".join(f"{name}={shlex.quote(value)}" for name, value in values.items())
        return f"{names} {shlex.join(_command(request, values))}".strip()

    def start(self, request: Request) -> NoReturn:
        values = _variables(request)
        if request.nnodes > 1 and not os.environ.get(settings.TOKEN):
            values[settings.TOKEN] = os.urandom(16).hex()
        _become(_command(request, values), {**os.environ, **values})


def _become(command: list[str], environ: dict[str, str]) -> NoReturn:
    """Be mpirun from here on: whoever signals this process signals it."""
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # which Python ignores
    os.execve(command[0], command, environ)


def _variables(request: Request) -> dict[str, str]:
    """Return what the ranks find in their environment, beside what mpirun sets."""
    here = {RANKS_HERE: str(request.ranks("mpirun is told how many there are"))}
    return here | requests(request) | _first(request)


def _first(request: Request) -> dict[str, str]:
    """Return where rank 0 is, as the options or --hosts say; else as the environment here does,
    which mpirun alone would not take to every host."""
    given, hosts = request.given, request.hosts
    here = {name: os.environ[name] for name in MASTER if os.environ.get(name) and not hosts}
    if len(hosts) < 2 and not (given.master_addr or given.master_port):
        return here
    known = LOOPBACK if request.nnodes == 1 else hosts[0].address if hosts else None
    address = given.master_addr or here.get(MASTER[0]) or known
    if address is None:
        raise ConfigurationError(
            "With several hosts, a port alone does not say where rank 0 is. Received: "
            f"--master-port {given.master_port}, --nnodes {request.nnodes}. Pass --master-addr or "
            "--hosts too."
        )
    port = given.master_port or here.get(MASTER[1])
    port = port or port_of([str(os.getpid()), *map(str, hosts)])
    return dict(zip(MASTER, (address, str(port)), strict=True))


def _command(request: Request, values: dict[str, str]) -> list[str]:
    n = request.ranks("mpirun is told how many there are")
    mpirun = program("mpirun", _HOW)
    total = n * request.nnodes
    script = request.given.target
    kind = "module" if request.given.module else "script"
    python = [interpreter(), child.__file__, kind, script, *request.given.arguments]
    names = [*values, *carried(), *((settings.TOKEN,) if request.nnodes > 1 else ())]
    make = _is_open_mpi(mpirun)
    options = _open_mpi(request, n, names) if make else _hydra(request, n, names)
    return [mpirun, *options, *request.given.engine_option, "-n", str(total), *python]


def _is_open_mpi(mpirun: str) -> bool:
    told = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=60,
                          check=False)  # fmt: skip
    return "Open MPI" in told.stdout or "OpenRTE" in told.stdout


def _open_mpi(request: Request, n: int, names: Sequence[str]) -> list[str]:
    hosts = [f"{host.name}:{n}" for host in request.hosts]
    place = ["--host", ",".join(hosts)] if hosts else ["--oversubscribe"] * (request.nnodes == 1)
    blocks = ["--map-by", f"ppr:{n}:node", "--bind-to", "none"]
    return [*place, *blocks, *(word for name in dict.fromkeys(names) for word in ("-x", name))]


def _hydra(request: Request, n: int, names: Sequence[str]) -> list[str]:
    hosts = [f"{host.name}:{n}" for host in request.hosts]
    place = ["-hosts", ",".join(hosts)] if hosts else []
    if len(hosts) > 1:  # by a name, that others may not know, unless it is told
        place += ["-localhost", own_address(request.hosts[-1].address)]
    return [*place, "-ppn", str(n), "-genvlist", ",".join(dict.fromkeys([*names, *_PATHS]))]


_PATHS = ("PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH")
"""Once a list is given, MPICH hands on nothing else."""
