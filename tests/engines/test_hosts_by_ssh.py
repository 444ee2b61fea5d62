"""`dream run --hosts` reaches hosts by OpenSSH's own server, each a network namespace."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from pathlib import Path

import netns
import pytest
from launch_scripts import dream, wait_for, write
from netns import DREAM, Started
from sshd import TOKEN, Hosts

WAITING = "mark(f'started{rank}')\nwhile True: time.sleep(0.05)\n"


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
