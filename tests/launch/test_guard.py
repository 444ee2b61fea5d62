"""Folders and ranks that go with a launcher that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch_scripts import gone, start, wait_for, write

from dream.launch.guard import Guard, folder_held

READY = "mark(rank)\ntime.sleep(600)\n"
FUNCTION = """
import os, sys, time
import dream

def stay(folder):
    path = os.path.join(folder, os.environ['RANK'])
    with open(path + '.part', 'w') as file: file.write(str(os.getpid()))
    os.rename(path + '.part', path)
    time.sleep(600)

if __name__ == '__main__':
    dream.launch(stay, sys.argv[1])
"""


def emptied(folder: Path, seconds: float = 120) -> bool:
    limit = time.monotonic() + seconds
    while any(folder.iterdir()) and time.monotonic() < limit:
        time.sleep(0.02)
    return not any(folder.iterdir())


@pytest.mark.parametrize("how", ["run", "launch"])
def test_they_go_with_a_killed_launcher(tmp_path: Path, how: str) -> None:
    scratch = tmp_path / "a folder's $name"
    scratch.mkdir()
    env = {"TMPDIR": str(scratch)}
    if how == "run":
        script = write(tmp_path, READY)
        launcher = start("run", "-n", "2", script, env=env)
        told = [Path(f"{script}.{rank}") for rank in range(2)]
    else:
        (tmp_path / "function.py").write_text(FUNCTION)
        launcher = subprocess.Popen(
            [sys.executable, str(tmp_path / "function.py"), str(tmp_path)],
            env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        told = [tmp_path / "0", tmp_path / "1"]
    with launcher:
        wait_for(told)
        assert any(scratch.iterdir())
        launcher.send_signal(signal.SIGKILL)
    assert gone([int(file.read_text()) for file in told])
    assert emptied(scratch)


def test_they_stay_where_nobody_was_killed(tmp_path: Path) -> None:
    """Who made them removes them, or starts again with what is in them."""
    guard = Guard()
    guard.add_folder(tmp_path)
    guard.close()
    assert tmp_path.is_dir()


def test_what_was_left_with_its_guard_goes_at_the_next_start(tmp_path: Path) -> None:
    """As where a whole container is killed. One that is held stays, and one that is being made."""
    left, new = tmp_path / "kept-left", tmp_path / "kept-new"
    for folder in (left, new):
        folder.mkdir()
    (left / ".held").touch()
    with folder_held("kept-", tmp_path) as one, folder_held("kept-", tmp_path) as other:
        assert {*tmp_path.iterdir()} == {new, one, other}
        assert one.stat().st_mode & 0o777 == 0o700
    assert [*tmp_path.iterdir()] == [new]


def test_commits_go_with_a_killed_launcher(tmp_path: Path) -> None:
    body = "if rank == 0: print(os.environ['DREAM_COMMITS'], flush=True)\n" + READY
    options = ("--checkpoint", str(tmp_path / "kept"), "--max-restarts", "1")
    script = write(tmp_path, body)
    launcher = start("run", "-n", "2", *options, script)
    with launcher:
        wait_for([Path(f"{script}.{rank}") for rank in range(2)])
        assert launcher.stdout is not None
        folder = Path(launcher.stdout.readline().strip())
        assert folder.is_dir()
        launcher.send_signal(signal.SIGKILL)
    limit = time.monotonic() + 120
    while folder.exists() and time.monotonic() < limit:
        time.sleep(0.02)
    assert not folder.exists()
