"""OpenSSH's own server on each of several hosts, with keys of the test's alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from netns import DREAM, Host, Started

SSHD = "/usr/sbin/sshd"
_SERVER = """
Port 22
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
"""
_CLIENT = """
IdentityFile {folder}/user
IdentitiesOnly yes
StrictHostKeyChecking no
UserKnownHostsFile {folder}/known
LogLevel ERROR
"""


TOKEN = "a-token-that-nobody-may-see"
ROOT_MAY = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@dataclass(frozen=True)
class Hosts:
    """Two that train, and one where `dream run` is typed."""

    trained: list[Host]
    typed: Host
    option: str

    @property
    def names(self) -> str:
        return ",".join(f"{host.address}:2" for host in self.trained)

    def run(self, started: Started, *words: str) -> subprocess.Popen[str]:
        command = (*DREAM, "run", "--hosts", self.names, self.option, *words)
        return started.on(self.typed, *command, env={"DREAM_TOKEN": TOKEN})

    def path(self, make: str, folder: Path) -> Mapping[str, str]:
        """A PATH on which `mpirun` is that of a make, and ssh reaches the hosts."""
        folder.mkdir()
        ssh = f"{shutil.which('ssh')} {self.option.partition('=')[2]}"
        for name, what in (("mpirun", shutil.which(make)), ("ssh", ssh)):
            (folder / name).write_text(f'#!/bin/sh\nexec {what} "$@"\n')
            (folder / name).chmod(0o755)
        return {**ROOT_MAY, "PATH": f"{folder}:{os.environ['PATH']}"}


def why_not() -> str:
    """Why there can be none here; empty where there can."""
    missing = [name for name in ("ssh", "ssh-keygen", SSHD) if shutil.which(name) is None]
    return f"{', '.join(missing)} not installed: make engines" if missing else ""


@contextmanager
def servers(folder: Path, hosts: Sequence[Host]) -> Iterator[str]:
    """They serve while the block lasts. Yields the option that ssh is to be given."""
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "user"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(key, check=True, timeout=60)
    (folder / "sshd_config").write_text(_SERVER.format(folder=folder))
    (folder / "ssh_config").write_text(_CLIENT.format(folder=folder))
    with Started() as processes:
        for host in hosts:
            processes.on(host, SSHD, "-D", "-e", "-f", str(folder / "sshd_config"))
        for host in hosts:
            _await(host)
        yield f"--engine-option=-F{folder / 'ssh_config'}"


def _await(host: Host) -> None:
    probe = f"import socket; socket.create_connection(('{host.address}', 22), 1)"
    limit = time.monotonic() + 60
    while subprocess.run(host.command("python3", "-c", probe), capture_output=True).returncode:
        assert time.monotonic() < limit, host
        time.sleep(0.1)
