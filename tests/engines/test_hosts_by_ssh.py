"""`dream run --hosts` reaches hosts by OpenSSH's own server, each a network namespace."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import netns
import numpy as np
import pytest
from launch_scripts import dream, wait_for, write
from netns import DREAM, Host, Started
from sshd import servers, why_not
from test_engines import ROOT_MAY, SCRIPT, start

TOKEN = "a-token-that-nobody-may-see"
WAITING = "mark(f'started{rank}')\nwhile True: time.sleep(0.05)\n"


@dataclass(frozen=True)
class Hosts:
    """Two that train, and one where `dream run` is typed."""

    trained: list[Host]
    typed: Host
    option: str

    @property
    def names(self) -> str:
        return ",".join(f"{host.address}:2" for host in self.trained)

    def run(self, started: Started, *words: str) -> netns.subprocess.Popen[str]:
        command = (*DREAM, "run", "--hosts", self.names, self.option, *words)
        return started.on(self.typed, *command, env={"DREAM_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"})

    def commands(self) -> list[str]:
        """Every command line on every host."""
        pids = [pid for host in (*self.trained, self.typed) for pid in host.pids()]
        files = [Path(f"/proc/{pid}/cmdline") for pid in pids]
        return [file.read_bytes().replace(b"\0", b" ").decode() for file in files if file.exists()]

    def gone(self) -> bool:
        """Whether nothing of a job is left anywhere, within a time."""
        limit = time.monotonic() + 60
        while left := [words for words in self.commands() if "script.py" in words]:
            if time.monotonic() > limit:
                pytest.fail(f"left: {left}")
            time.sleep(0.1)
        return True


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    if reason := why_not():
        pytest.skip(reason)
    with ExitStack() as held:
        *trained, typed = held.enter_context(netns.hosts(3))
        option = held.enter_context(servers(tmp_path_factory.mktemp("ssh"), trained))
        yield Hosts(trained, typed, option)


@pytest.fixture
def started() -> Iterator[Started]:
    with Started() as processes:
        yield processes


@pytest.mark.slow
def test_hosts_train_one_model(hosts: Hosts, started: Started, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (said,) = netns.ends([hosts.run(started, str(script), str(tmp_path))], time.monotonic(), 300)
    assert said.code == 0, said.err
    told = [json.loads((tmp_path / f"4-{rank}.json").read_text()) for rank in range(4)]
    places = [(one["rank"], one["local"], one["node"]) for one in told]
    assert places == [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1)]
    assert all(one["weights"] == told[0]["weights"] for one in told)
    (alone,) = start(script, [DREAM[0]], ranks=1)
    np.testing.assert_allclose(told[0]["weights"], alone["weights"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_the_one_that_was_typed_is_that_of_all(
    number: signal.Signals, hosts: Hosts, started: Started, tmp_path: Path
) -> None:
    script = write(tmp_path, WAITING)
    launcher = hosts.run(started, "--grace", "5", script)
    wait_for([Path(f"{script}.started{rank}") for rank in range(4)])
    assert not [words for words in hosts.commands() if TOKEN in words]
    launcher.send_signal(number)
    (said,) = netns.ends([launcher], time.monotonic(), 60)
    assert hosts.gone()
    if number is signal.SIGINT:
        assert said.code == 130
        assert "Stopped by SIGINT" in said.err


def test_a_rank_that_fails_on_another_host_is_named_once(
    hosts: Hosts, started: Started, tmp_path: Path
) -> None:
    body = "wait_for_mark('started0') if rank == 3 else None\n"
    body += "if rank == 3: raise ValueError('this one')\n" + WAITING
    (said,) = netns.ends([hosts.run(started, write(tmp_path, body))], time.monotonic(), 120)
    assert said.code == 1
    assert said.err.count("Rank 3 failed with exit code 1") == 1, said.err
    assert "ValueError: this one" in said.err
    assert hosts.gone()


def test_a_host_that_is_not_reached_ends_the_start(
    hosts: Hosts, started: Started, tmp_path: Path
) -> None:
    script = write(tmp_path, WAITING)
    names = f"{hosts.trained[0].address}:1,{hosts.typed.address[:-1]}99:1"
    command = (*DREAM, "run", "--hosts", names, hosts.option, script)
    (said,) = netns.ends([started.on(hosts.typed, *command)], time.monotonic(), 60)
    assert said.code == 255
    assert "99 is not reached (exit code 255)" in said.err
    assert hosts.gone()


@pytest.mark.skipif(shutil.which("ssh") is None, reason="ssh is not installed: make engines")
@pytest.mark.parametrize("code", [255, 127])
def test_a_script_that_ends_as_ssh_does_is_no_lost_host(code: int, tmp_path: Path) -> None:
    """Its launcher starts it again, as often as was asked for, and nobody else does."""
    body = f"print('began'); print('no newline', end='', file=sys.stderr); sys.exit({code})\n"
    script = write(tmp_path, body)
    ran = dream("run", "--hosts", "localhost:1", "--max-restarts", "1", script)
    assert ran.returncode == code
    assert ran.stdout == "began\n" * 2
    assert f"failed with exit code {code}" in ran.stderr
    assert "is started again" not in ran.stderr
    assert not re.search(r"lost|[0-9a-f]{32}", ran.stderr), ran.stderr


@pytest.mark.exhaustive
def test_a_host_that_is_lost_is_started_again(
    hosts: Hosts, started: Started, tmp_path: Path
) -> None:
    """Its launcher is killed, as by a host that starts anew; the others wait for it."""
    body = "mark(f'began{rank}.' + str(os.path.exists(f'{sys.argv[0]}.lost')))\n"
    body += "while not os.path.exists(f'{sys.argv[0]}.lost'): time.sleep(0.05)\n"
    script = write(tmp_path, body + "print('well', flush=True)\n")
    launcher = hosts.run(started, "--max-restarts", "1", script)
    wait_for([Path(f"{script}.began{rank}.False") for rank in range(4)])
    remote = [pid for pid in hosts.trained[1].pids() if "engines.remote" in command_of(pid)]
    Path(f"{script}.lost").write_text("x")
    for pid in remote:
        if "ssh" not in command_of(pid) and " -c " not in command_of(pid):
            os.kill(pid, signal.SIGKILL)
    (said,) = netns.ends([launcher], time.monotonic(), 120)
    assert said.code == 0, said.err
    assert "is started again" in said.err


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("make", ["mpirun.openmpi", "mpirun.mpich"])
def test_mpiruns_of_two_makes_reach_two_hosts(
    make: str, hosts: Hosts, started: Started, tmp_path: Path
) -> None:
    """They find ssh by PATH, and the host of rank 0 by what `dream run --on mpi` tells them."""
    if shutil.which(make) is None:
        pytest.skip(f"{make} is not installed: make engines")
    programs, option = tmp_path / "bin", hosts.option.partition("=")[2]
    programs.mkdir()
    for name, what in (("mpirun", shutil.which(make)), ("ssh", f"{shutil.which('ssh')} {option}")):
        (programs / name).write_text(f'#!/bin/sh\nexec {what} "$@"\n')
        (programs / name).chmod(0o755)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = (*DREAM, "run", "--on", "mpi", "--hosts", hosts.names, str(script), str(tmp_path))
    environ = {**ROOT_MAY, "PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    launcher = started.on(hosts.typed, *command, env=environ)
    (said,) = netns.ends([launcher], time.monotonic(), 300)
    assert said.code == 0, said.err[-3000:]
    told = [json.loads((tmp_path / f"4-{rank}.json").read_text()) for rank in range(4)]
    assert [(one["local"], one["node"]) for one in told] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    (alone,) = start(script, [DREAM[0]], ranks=1)
    for one in told:
        np.testing.assert_allclose(one["weights"], alone["weights"], rtol=0, atol=1e-6)
