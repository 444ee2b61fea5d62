"""Ranks that have failed, or have come to their end, and do not leave."""

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
from dream.launch.events import Events

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
