"""`dream run --on mpi`: mpirun starts every rank itself, Open MPI's or MPICH's (and Intel's).

Placing, output and ends are mpirun's. What `dream run` was asked for, and the token of several
hosts, go to the ranks in their environment, of which mpirun is told the names alone.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from typing import final

from dream.cluster import settings
from dream.cluster.ports import LOOPBACK, own_address, port_of
from dream.launch import child
from dream.launch.engines.engine import Engine, carried, program, requests
from dream.launch.engines.request import Request, interpreter

_HOW = "Install Open MPI (openmpi-bin), MPICH (mpich) or Intel MPI; or start ranks with --hosts."


@final
class Mpi(Engine):
    def written(self, request: Request) -> str:
        values = _variables(request)
        names = " ".join(f"{name}={shlex.quote(value)}" for name, value in values.items())
        return f"{names} {shlex.join(_command(request, values))}".strip()

    def start(self, request: Request) -> int:
        values = _variables(request)
        if request.nnodes > 1 and not os.environ.get(settings.TOKEN):
            values[settings.TOKEN] = os.urandom(16).hex()
        environ = {**os.environ, **values}
        return subprocess.run(_command(request, values), env=environ, check=False).returncode


def _variables(request: Request) -> dict[str, str]:
    """Return what the ranks find in their environment, beside what mpirun sets."""
    given, found = request.given, requests(request)
    if len(request.hosts) > 1:
        address = given.master_addr or request.hosts[0].address
        port = given.master_port or port_of([str(os.getpid()), *map(str, request.hosts)])
        found |= {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    elif given.master_port and request.nnodes == 1:
        found |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(given.master_port)}
    return found


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
