"""How ranks come by memory: little of it, out of one another's sight, private, and gone."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import stat
import subprocess
import threading
import time
from contextlib import suppress

import native_job
import pytest
from native_calls import Asked, expected

from dream.shared_memory import memory, status

pytestmark = pytest.mark.skipif(status().path is None, reason=status().why)
APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""What starts a process that sees no other's pid."""

MIXED = [
    Asked("all_reduce", 300_001, "float16", "mean"),
    Asked("reduce_scatter", 70_001, "float64"),
    Asked("all_gather", 100_001, "bytes"),
    Asked("all_to_all", 50_001, "int32"),
    Asked("broadcast", 300_001, "bfloat16", root=1),
]


def check(job: native_job.Job) -> None:
    for asked in MIXED:
        for rank, found in enumerate(job.gave("call", asked)):
            assert found.tobytes() == expected(asked, rank, job.size).tobytes(), (asked, rank)


def test_little_room_is_used_and_said(capfd: pytest.CaptureFixture[str]) -> None:
    with native_job.job(3) as job:
        job.gave("limit", 1 << 20)
        job.gave("connect", "little")
        check(job)
    said = capfd.readouterr().err
    assert "uses smaller pieces of 64 KiB" in said
    assert "bytes of anonymous memory: File too large" in said


def test_no_room_is_an_error_with_the_size_wanted() -> None:
    with native_job.job(2) as job:
        job.gave("limit", 1 << 16)
        job.ask("connect", "none")
        for rank in range(2):
            error = job.answer(rank)
            assert type(error).__name__ == "Unsupported", error
            assert f"{4 * 2 * 512 * 1024 + 4096 + 16} bytes of anonymous memory" in str(error)
            assert "File too large" in str(error)
            assert "/dev/shm" in str(error)


@pytest.mark.skipif(
    subprocess.run([*APART, "true"], capture_output=True, check=False).returncode != 0,
    reason="this user may make no namespaces",
)
def test_ranks_that_do_not_see_one_anothers_pids() -> None:
    """As in containers of one pod. A death is seen all the same."""
    with native_job.job(3, *APART) as job:
        job.gave("connect", "apart")
        check(job)
        job.ask("until_it_fails", 1.0)
        time.sleep(0.2)  # until in the middle of it, mostly
        job.processes[2].send_signal(signal.SIGKILL)
        for rank in (0, 1):
            said = job.answer(rank)
            assert said.startswith("WorkerFailed: Rank 2 is gone"), said


@pytest.mark.parametrize("create", [memory._anonymous, memory._nameless])
def test_it_is_private_and_in_no_folder(create: object) -> None:
    before = native_job.left_in_shared_memory()
    made = memory._filled(create(), 8192 + memory.TOKEN, 4096)  # type: ignore[operator]
    assert native_job.left_in_shared_memory() == before
    assert stat.S_IMODE(os.fstat(made.fd).st_mode) == 0o600
    assert memory.open_through_proc(os.getpid(), made.fd, secrets.token_bytes(16)) is None
    found = memory.open_through_proc(os.getpid(), made.fd, made.token)
    assert found is not None
    assert os.path.samestat(os.fstat(found), os.fstat(made.fd))
    os.close(found)
    os.close(made.fd)


def test_it_is_handed_only_to_who_knows_the_token() -> None:
    made = memory.make(2, lambda ranks, slot: ranks * slot)
    with memory.listen() as listening:
        child = os.fork()
        if not child:
            memory.hand_out(made, listening, 1)
            os._exit(0)
        address = listening.getsockname()
        assert memory.fetch(address, secrets.token_bytes(16)) is None
        found = memory.fetch(address, made.token)
        assert found is not None
        assert os.path.samestat(os.fstat(found), os.fstat(made.fd))
        os.close(found)
        os.close(made.fd)
        assert os.waitpid(child, 0)[1] == 0


def test_a_stranger_who_stays_silent_keeps_nobody_out() -> None:
    """The address has no owner: whoever is on the machine can connect."""
    made = memory.make(2, lambda ranks, slot: ranks * slot)
    with memory.listen() as listening:
        address = listening.getsockname()
        strangers = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for stranger in strangers:
            stranger.connect(address)
        strangers[1].sendall(made.token[:7])
        strangers[2].sendall(secrets.token_bytes(64))
        giving = threading.Thread(target=memory.hand_out, args=[made, listening, 1], daemon=True)
        giving.start()
        found = memory.fetch(address, made.token)
        assert found is not None
        giving.join(timeout=100)
        assert not giving.is_alive()
    for stranger in strangers:
        with suppress(ConnectionError):
            assert stranger.recv(100) == b""
        stranger.close()
    os.close(found)
    os.close(made.fd)
