"""Ranks that fail, and who is named: real processes."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from launch_scripts import gone, outcome

from dream.launch import idle, watch
from dream.launch.ending import describe
from dream.launch.outcome import Outcome

LONG = "time.sleep(600)\n"


def named(end: Outcome) -> int:
    assert end.cause is not None
    return end.cause.first.rank


def test_all_well(tmp_path: Path) -> None:
    end = outcome(tmp_path, "print('well')\n")
    assert (end.exit_code, end.cause, end.ended) == (0, None, ())


def test_an_error_ends_the_others_and_is_shown(tmp_path: Path) -> None:
    end = outcome(tmp_path, "if rank == 1: raise ValueError('mine')\n" + LONG, n=3)
    assert (end.exit_code, named(end), end.ended) == (1, 1, (0, 2))
    assert end.cause is not None
    text = end.cause.first.text
    assert text.endswith("ValueError: mine\n")
    assert "script.py" in text
    assert "child.py" not in text


@pytest.mark.parametrize(
    ("statement", "code", "how"),
    [
        ("sys.exit(7)", 7, "exit code 7"),
        ("sys.exit('no data')", 1, "no data"),
        ("os._exit(9)", 9, "exit code 9"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "SIGKILL (signal 9"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "SIGSEGV (signal 11)"),
    ],
)
def test_every_way_to_fail(tmp_path: Path, statement: str, code: int, how: str) -> None:
    end = outcome(tmp_path, f"if rank == 1: {statement}\n" + LONG)
    assert (end.exit_code, named(end)) == (code, 1)
    assert end.cause is not None
    assert how in describe(end.cause, end.seconds, end.ended)


def test_the_cause_is_named_though_its_victim_ends_first(tmp_path: Path) -> None:
    """Rank 1's interpreter takes its time to end; rank 0 fails of it and is gone at once."""
    body = """
import atexit
if rank == 1:
    atexit.register(time.sleep, 600)
    atexit.register(mark, 'ending')
    raise KeyError('the cause')
wait_for_mark('ending')
raise ConnectionResetError('the victim')
"""
    end = outcome(tmp_path, body)
    assert named(end) == 1


def test_the_killed_is_named_and_not_who_lost_it(tmp_path: Path) -> None:
    body = """
import socket
path = sys.argv[0] + '.socket'
if rank == 0:
    server = socket.socket(socket.AF_UNIX); server.bind(path); server.listen()
    mark('listens')
    if not server.accept()[0].recv(1): raise ConnectionResetError('peer is gone')
wait_for_mark('listens')
client = socket.socket(socket.AF_UNIX)
client.connect(path)
os.kill(os.getpid(), signal.SIGKILL)
"""
    end = outcome(tmp_path, body)
    assert (named(end), end.exit_code) == (1, 137)


def test_who_left_early_is_named_and_not_its_victim(tmp_path: Path) -> None:
    body = """
if rank == 1:
    mark('leaves')
    sys.exit(0)
wait_for_end_of(wait_for_mark('leaves'))
raise ConnectionResetError('peer')
"""
    end = outcome(tmp_path, body)
    assert (named(end), end.exit_code) == (1, 1)
    assert end.cause is not None
    assert end.cause.victim is not None
    assert end.cause.victim.rank == 0


def test_who_left_early_is_named_while_it_still_tidies_up(tmp_path: Path) -> None:
    body = """
import atexit
if rank == 1:
    atexit.register(time.sleep, 600)
    atexit.register(mark, 'ending')
    sys.exit(0)
wait_for_mark('ending')
raise ConnectionResetError('peer')
"""
    assert named(outcome(tmp_path, body)) == 1


def test_who_waits_for_one_that_left_is_ended(tmp_path: Path) -> None:
    end = outcome(tmp_path, "if rank == 0: time.sleep(600)\n", env={"DREAM_STALL_SECONDS": "1.5"})
    assert (named(end), end.exit_code, end.ended) == (1, 1, (0,))


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

    monkeypatch.setattr(idle, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(watch, "_TICK_SECONDS", 0.4)
    body = """
if rank == 0:
    while not os.path.exists(f'{sys.argv[0]}.enough'): sum(range(100_000))
"""
    assert outcome(tmp_path, body, env={"DREAM_STALL_SECONDS": "7.5"}).exit_code == 0


def test_a_time_limit(tmp_path: Path) -> None:
    end = outcome(tmp_path, LONG, timeout=1)
    assert (end.exit_code, end.cause, end.ended) == (1, None, (0, 1))
    assert end.lost == "the time limit of 1 s passed"


def test_a_rank_that_ignores_sigterm_is_ended_too(tmp_path: Path) -> None:
    body = f"""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
mark(rank)
if rank == 1:
    wait_for_mark(0)
    raise ValueError('mine')
{LONG}"""
    end = outcome(tmp_path, body)
    assert named(end) == 1
    assert gone([int((tmp_path / "script.py.0").read_text())])
