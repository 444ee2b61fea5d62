"""Ranks that fail in every way: the first cause is named, and everybody ends. And what the launcher
knows from a rank's report, before its process has ended."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from launch_scripts import gone, outcome, wait_for

from dream.launch import watch
from dream.launch.ending import Outcome, describe
from dream.launch.watch import Events

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
        ("print('usage: --lr', file=sys.stderr); sys.exit(2)", 2, "\n  usage: --lr"),
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


def test_a_rank_that_ends_while_its_report_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job was taken for a good one: 1 in 240 of a script that raises, on busy cores."""
    own = watch.JobWatch._overdue

    def late(self: watch.JobWatch) -> Outcome | None:
        limit = time.monotonic() + 60
        while self._running() and time.monotonic() < limit:
            time.sleep(0.01)
        return own(self)

    monkeypatch.setattr(watch.JobWatch, "_overdue", late)
    body = "import atexit\natexit.register(time.sleep, 0.3)\nraise ValueError('mine')\n"
    end = outcome(tmp_path, body, n=1)
    assert (end.exit_code, named(end)) == (1, 0)


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


def test_who_is_stopped_is_named_and_not_who_failed_of_it(tmp_path: Path) -> None:
    """As with TensorFlow's heartbeats, whose error names nobody."""
    body = """
if rank == 1:
    mark('stops')
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)
pid = wait_for_mark('stops')
while open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[0] != 'T':
    time.sleep(0.01)
raise ConnectionResetError('peer')
"""
    end = outcome(tmp_path, body)
    assert named(end) == 1
    assert end.cause is not None
    assert "is stopped" in describe(end.cause, end.seconds, end.ended)


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


LIMIT = 100.0
"""Seconds: long before ranks would end by themselves."""

STAYS = """
import atexit, threading
child = subprocess.Popen(['sleep', '600'])
with open(f'{sys.argv[0]}.child', 'w') as file: file.write(str(child.pid))
"""
THREAD = "threading.Thread(target=time.sleep, args=(600,)).start()\n"
AT_EXIT = "atexit.register(time.sleep, 600)\n"


@pytest.mark.parametrize(
    ("keep", "fail", "code", "word"),
    [(THREAD, "raise ValueError('mine')", 1, "mine"), (AT_EXIT, "sys.exit(7)", 7, "")],
)
def test_a_rank_that_failed_is_not_waited_for(
    tmp_path: Path, keep: str, fail: str, code: int, word: str
) -> None:
    body = f"if rank == 0: time.sleep(600)\n{STAYS}{keep}{fail}\n"
    end = outcome(tmp_path, body, timeout=LIMIT)
    assert end.cause is not None
    assert (end.cause.first.rank, end.exit_code, end.ended) == (1, code, (0,))
    assert word in end.cause.first.text
    assert end.cause.first.how == f"failed with exit code {code}"
    assert gone([int((tmp_path / "script.py.child").read_text())])


def test_a_rank_at_its_good_end_may_take_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_LEAVING_SECONDS", 0.0)
    body = """
import threading
if rank == 1:
    threading.Thread(target=lambda: (wait_for_mark('done'), mark('uploaded'))).start()
    sys.exit(0)
mark('done')
"""
    assert outcome(tmp_path, body).exit_code == 0
    assert (tmp_path / "script.py.uploaded").exists()


def test_a_forked_childs_end_is_not_the_ranks(tmp_path: Path) -> None:
    """Nor is it told in a file that the script opened where the pipe to the launcher was."""
    body = """
if os.fork() == 0: raise ValueError('the child')
os.wait()
if rank == 1:
    os.closerange(3, 100)
    file = open(f'{sys.argv[0]}.file', 'w')
    for _ in range(20): os.dup(file.fileno())
"""
    end = outcome(tmp_path, body)
    assert (end.exit_code, end.cause) == (0, None)
    assert (tmp_path / "script.py.file").read_text() == ""


def test_who_stops_the_job_may_reach_a_rank_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As schedulers do, which signal every process: it is no failure of the rank's."""
    monkeypatch.setattr(watch, "_SHORT_GRACE_SECONDS", LIMIT)
    body = """
if rank == 1:
    mark('first')
    os.kill(os.getpid(), signal.SIGTERM)
def stop(*_):
    mark('saved')
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
mark('ready')
time.sleep(600)
"""

    @contextmanager
    def late(events: Events) -> Iterator[None]:
        def put() -> None:
            wait_for([tmp_path / "script.py.ready", tmp_path / "script.py.first"])
            assert gone([int((tmp_path / "script.py.first").read_text())])
            time.sleep(0.5)  # for the launcher to hear of it; if it has not, so much the better
            events.put(signal.SIGTERM)

        thread = threading.Thread(target=put)
        thread.start()
        yield
        thread.join()

    end = outcome(tmp_path, body, timeout=LIMIT, listen=late)
    assert (end.exit_code, end.cause) == (143, None)
    assert (tmp_path / "script.py.saved").exists()
