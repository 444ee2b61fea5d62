"""A cluster of Slurm's own daemons on this machine: one controller, two nodes of two tasks."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd", "srun")
NODES = ("127.0.0.2", "127.0.0.3")  # names that resolve to this machine, whatever it is called
_SECONDS = 30.0
_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmctldPort={port}
NodeName=127.0.0.[2-3] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports}] CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


def why_not() -> str:
    """Why there can be no such cluster here; empty where there can."""
    where = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    missing = [name for name in DAEMONS if shutil.which(name, path=where) is None]
    if missing:
        return f"{', '.join(missing)} not installed: make engines"
    return "" if os.geteuid() == 0 else "Slurm's daemons start tasks as root alone"


@contextmanager
def cluster(folder: Path) -> Iterator[Mapping[str, str]]:
    """Its daemons run while the block lasts. Yields what srun's environment needs."""
    (folder / "state").mkdir()
    conf = folder / "slurm.conf"
    ports = _free_ports(1 + len(NODES))
    conf.write_text(
        _CONF.format(
            folder=folder,
            host=socket.gethostname(),
            port=ports[0],
            ports=f"{ports[1]},{ports[2]}",
        )
    )
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o600)
    names = {"key-file": "key", "socket": "munge.socket", "pid-file": "munge.pid",
             "log-file": "munge.log", "seed-file": "munge.seed"}  # fmt: skip
    munge = [f"--{option}={folder / name}" for option, name in names.items()]
    environ = {"SLURM_CONF": str(conf)}
    daemons = [["munged", "--foreground", "--force", *munge], ["slurmctld", "-D", "-c"]]
    daemons += [["slurmd", "-D", "-N", name] for name in NODES]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in daemons:
            started.append(_start(command, environ))
            _await(folder / "munge.socket")
        _await_idle(environ)
        yield environ
    finally:
        for daemon in reversed(started):
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
            daemon.wait(10)


def _start(command: list[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    return subprocess.Popen(
        command,
        env={**os.environ, **environ, "PATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [one.getsockname()[1] for one in sockets]


def _await(path: Path) -> None:
    limit = time.monotonic() + _SECONDS
    while not path.exists():
        assert time.monotonic() < limit, path
        time.sleep(0.05)


def _await_idle(environ: Mapping[str, str]) -> None:
    limit = time.monotonic() + _SECONDS
    while True:
        told = subprocess.run(
            ["sinfo", "-h", "-N", "-o", "%T"], env={**os.environ, **environ}, capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        if told.stdout.split() == ["idle"] * len(NODES):
            return
        assert time.monotonic() < limit, told
        time.sleep(0.2)
