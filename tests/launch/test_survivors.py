"""Ranks that outlive another: who waits in vain is ended, and who works on is left in peace."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from launch_scripts import outcome

from dream.launch import survivors, watch
from dream.launch.ending import Ending
from dream.launch.survivors import Expendable


def test_who_waits_for_one_that_left_is_ended(tmp_path: Path) -> None:
    end = outcome(tmp_path, "if rank == 0: time.sleep(600)\n", env={"DREAM_STALL_SECONDS": "1.5"})
    assert (end.exit_code, end.ended) == (1, (0,))
    assert end.cause is not None
    assert end.cause.first.rank == 1


def test_who_works_on_alone_is_left_in_peace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at for longer than one that does nothing would be left: by the number of looks, since
    on a busy machine a rank may stand still for seconds."""
    looks = count()

    def clock() -> float:
        look = next(looks)
        if look > 10:
            (tmp_path / "script.py.enough").touch()
        return float(look)

    monkeypatch.setattr(survivors, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(watch, "_TICK_SECONDS", 0.4)
    body = """
if rank == 0:
    while not os.path.exists(f'{sys.argv[0]}.enough'): sum(range(100_000))
"""
    assert outcome(tmp_path, body, env={"DREAM_STALL_SECONDS": "7.5"}).exit_code == 0


def test_a_last_upload_is_no_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others have left, and the last one waits for a disk: it is told of, and left alone."""
    looks = count()

    def clock() -> float:
        look = next(looks)
        if look > 100:
            (tmp_path / "script.py.done").write_text("done")
        return float(look)

    monkeypatch.setattr(survivors, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(watch, "_TICK_SECONDS", 0.02)
    body = "if rank == 0: wait_for_mark('done')\n"
    end = outcome(tmp_path, body, env={"DREAM_STALL_SECONDS": "1800"})
    assert end.exit_code == 0
    told = capsys.readouterr().err
    assert told.count("for 60 s nothing has been computed or printed by rank 0") == 1
    assert "after 1800 s (DREAM_STALL_SECONDS)" in told


def test_a_store_that_is_gone_while_a_rank_fails() -> None:
    """It cannot tell whether the job does without the rank; that is no error of the launcher's."""

    def find(key: str) -> bytes | None:
        raise ConnectionRefusedError(key)

    expendable = Expendable(find)
    assert not expendable.starts_again(Ending(1, -9, 1.0))
    assert expendable.given_up() == set()


def test_a_worker_that_is_stopped_is_told_of_once(capfd: pytest.CaptureFixture[str]) -> None:
    """Ranks that are no workers of servers are named by those who wait for them."""
    expendable = Expendable(lambda key: b"0,1" if key == "roles/workers" else None)
    for stopped in ([], [0, 2], [0, 2], [], [0]):
        expendable.tell_of_stopped(stopped)
    told = capfd.readouterr().err
    assert told.count("Worker 0 is suspended") == 2
    assert "Worker 2" not in told
