"""What ranks print, whatever becomes of screen and logs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from launch_scripts import DREAM, dream, launched, wait_for, write

from dream.launch.output import Screen, pieces

MUCH = "for _ in range(2000): print('x' * 500)\n"
"""More than a pipe holds: a rank whose output nobody reads would stand still."""

LIMIT = 100
"""Seconds for what takes one."""


def test_one_ranks_bytes_are_on_screen_as_they_came(tmp_path: Path) -> None:
    said = b"50%\r100%\b\b\b\bdone \xff\xfe\r\nno end"
    body = f"sys.stdout.buffer.write({said!r})\nsys.stdout.flush()\n"
    ran = subprocess.run(
        [*DREAM, "run", "-n", "2", write(tmp_path, body)], capture_output=True, timeout=300
    )
    assert (ran.stdout, ran.stderr) == (said, b"")


def test_several_ranks_lines_stay_apart(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    for rank, piece in ((0, b"half"), (1, b"one\ntwo\n"), (0, b"a"), (0, b"b\n"), (1, b"3%\r4%\r")):
        screen.show(rank, piece, is_error=False, prefixed=True)
    assert capsys.readouterr().out == "[0] half\n[1] one\n[1] two\n[0] ab\n[1] 3%\r[1] 4%\r"


def test_a_line_without_its_end_is_not_held_back(tmp_path: Path) -> None:
    body = "print('question', end='')\nwait_for_mark('go')\nprint(' answer')\n"
    script = write(tmp_path, body)
    with launched("run", "-n", "1", "--log-dir", str(tmp_path), script) as launcher:
        wait_for([tmp_path / "rank0.log"], LIMIT)
        assert (tmp_path / "rank0.log").read_text() == "question"
        Path(f"{script}.go").write_text("go")
        assert launcher.communicate(timeout=LIMIT)[0] == "question answer\n"


def test_output_without_lines_comes_in_pieces() -> None:
    """None of which grows with what came before."""
    read, written = os.pipe()
    said = os.urandom(1 << 22).replace(b"\n", b" ").replace(b"\r", b" ")

    def say() -> None:
        with os.fdopen(written, "wb") as file:
            file.write(said)

    thread = threading.Thread(target=say)
    thread.start()
    with os.fdopen(read, "rb"):
        came = list(pieces(read))
    thread.join()
    assert b"".join(came) == said
    assert max(map(len, came)) <= 1 << 17


def test_lines_come_whole() -> None:
    """So that stdout's and stderr's can be put together: Python writes a line in two."""
    read, written = os.pipe()
    with os.fdopen(written, "wb", buffering=0) as file:
        for part in (b"one", b"\ntw", b"o\r", b"\nthree"):
            file.write(part)
    with os.fdopen(read, "rb"):
        assert list(pieces(read)) == [b"one\ntwo\r\n", b"three"]


def test_a_full_disk_under_the_logs_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").symlink_to("/dev/full")
    done = subprocess.run(
        [*DREAM, "run", "-n", "1", "--log-dir", str(tmp_path), write(tmp_path, MUCH)],
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert (done.returncode, len(done.stdout)) == (0, 2000 * 501)
    assert done.stderr == (
        f"dream run: {tmp_path}/rank0.log cannot be written (No space left on device). The ranks "
        "continue; output that cannot be logged is dropped.\n"
    )


@pytest.mark.parametrize("both", [False, True])
def test_a_closed_screen_ends_no_training(tmp_path: Path, both: bool) -> None:
    body = f"{MUCH}print('warning', file=sys.stderr)\nmark('trained')\n"
    read, written = os.pipe()
    os.close(read)
    errors = written if both else subprocess.PIPE
    try:
        done = subprocess.run(
            [*DREAM, "run", "-n", "1", write(tmp_path, body)],
            stdout=written, stderr=errors, text=True, timeout=LIMIT, check=False,
        )  # fmt: skip
    finally:
        os.close(written)
    assert done.returncode == 0
    assert (tmp_path / "script.py.trained").exists()
    if not both:
        first, *rest = done.stderr.splitlines()
        assert "stdout cannot be written (Broken pipe)" in first
        assert rest == ["warning"]


def test_logs_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = dream("run", "-n", "2", "--log-dir", str(tmp_path / "file" / "logs"), __file__)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"Received: --log-dir {tmp_path}/file/logs" in ran.stderr
    assert "Not a directory" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_too_few_descriptors_for_so_many_ranks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dream", "run", "-n", "16", write(tmp_path, "")]
    ran = subprocess.run(
        ["sh", "-c", 'ulimit -n 60; exec "$@"', "sh", *command],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "limit of 60" in ran.stderr
    assert "ulimit -n 4096" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("rank", [0, 1])
def test_a_traceback_is_shown_once(tmp_path: Path, rank: int) -> None:
    body = f"if rank == {rank}: raise ValueError('mine')\ntime.sleep(600)\n"
    ran = dream("run", "-n", "2", write(tmp_path, body))
    assert ran.returncode == 1
    assert ran.stderr.count("ValueError: mine") == 1
    assert f"dream run: Rank {rank} failed with exit code 1" in ran.stderr
