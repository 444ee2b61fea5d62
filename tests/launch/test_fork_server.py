"""Ranks that are forked are as those started fresh, and end with their launcher. `rich` stands for
a framework: it is quick to import, and no module of Python's own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dream.launch.forks.foresight import IMPORTS
from dream.launch.forks.forked import SERVER, Forked, Fresh, serving, start

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="a fork server needs Linux")
Run = Callable[..., Fresh | Forked]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving() as path:
        yield path


@pytest.fixture
def run(server: str, tmp_path: Path) -> Iterator[Run]:
    """Start a script, whose report goes to a file; forked, if it is not said otherwise."""
    ranks: list[Fresh | Forked] = []
    with (tmp_path / "report").open("wb") as report:

        def run(text: str, *arguments: str, at: str = server, **environ: str) -> Fresh | Forked:
            script = tmp_path / f"script{len(ranks)}.py"
            script.write_text(text)
            given = {**os.environ, SERVER: at, IMPORTS: "rich", **environ}
            ranks.append(start([str(script), *arguments], given, report.fileno()))
            return ranks[-1]

        yield run
        for rank in ranks:
            if rank.returncode is None:
                os.killpg(rank.pid, signal.SIGKILL)
                rank.wait()
            for stream in (rank.stdout, rank.stderr):
                assert stream is not None
                stream.close()


def said(rank: Fresh | Forked) -> str:
    assert rank.stdout is not None
    return rank.stdout.read().decode()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60.0
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def gone(pid: int) -> bool:
    """Zombies are: nobody may be there to reap them."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


SEEN = """
import os, sys
print(__name__, sys.argv[1:], sys.path[0] == os.path.dirname(os.path.realpath(__file__)))
print(os.getcwd(), sys.flags.isolated, sys.stdout.write_through)
print(os.getsid(0) == os.getpid() == os.getpgid(0), os.environ["OF_THE_TEST"], sys.stdin.read())
print([name for name in ("rich", "dream", "numpy") if name in sys.modules])
import rich.console
print(rich.__spec__.name, rich.__spec__.loader.__class__.__name__, "numpy" in sys.modules)
os.write(int(os.environ["DREAM_REPORT"]), b"told")
print("to errors", file=sys.stderr)
sys.exit(7)
"""


def test_a_forked_rank_sees_what_a_fresh_one_sees(run: Run, server: str, tmp_path: Path) -> None:
    found = []
    for at in (server, ""):
        rank = run(SEEN, "first", "-x", at=at, OF_THE_TEST="value", **{"PYTHONUNBUFFERED": "1"})
        assert isinstance(rank, Forked) == bool(at)
        found.append(said(rank))
        assert rank.wait() == 7
        assert rank.stderr is not None
        assert rank.stderr.read() == b"to errors\n"
    assert found[0] == found[1]
    assert "['first', '-x'] True" in found[0]
    assert (tmp_path / "report").read_bytes() == b"toldtold"


def test_a_parent_serves_those_whose_variables_are_alike(run: Run) -> None:
    who = "import os; print(os.getppid())"
    first, same, place, other = (
        said(run(who, **environ))
        for environ in ({}, {}, {"RANK": "1", "DREAM_STRATEGY": "x"}, {"READ_AT_IMPORT": "1"})
    )
    assert first == same == place != other


def test_a_parent_of_torch_alone_serves_whatever_keras_reads(run: Run) -> None:
    who = "import os; print(os.getppid(), os.environ.get('KERAS_BACKEND'))"
    told = [
        said(run(who, **{IMPORTS: modules, "KERAS_BACKEND": backend})).split()
        for modules in ("torch", "rich")
        for backend in ("torch", "jax")
    ]
    assert told[0][0] == told[1][0]
    assert told[2][0] != told[3][0]  # rich may be of those that read it
    assert [backend for _, backend in told] == ["torch", "jax"] * 2


def test_no_two_ranks_share_random_numbers(run: Run) -> None:
    draw = "import random, numpy; print(random.random(), numpy.random.rand())"
    assert len({number for _ in range(3) for number in said(run(draw)).split()}) == 6


def test_torch_is_not_there_before_it_is_imported(run: Run) -> None:
    """Who seeds it once it is imported goes by that; and no two ranks share its numbers."""
    draw = "import sys; print('torch' in sys.modules); import torch; print(torch.rand(1).item())"
    found = [said(run(draw, **{IMPORTS: "torch"})).split() for _ in range(2)]
    assert [there for there, _ in found] == ["False", "False"]
    assert found[0][1] != found[1][1]


def test_how_a_rank_ends_is_told(run: Run) -> None:
    failed = run("raise ValueError('why')")
    assert failed.wait() == 1
    assert failed.stderr is not None
    assert b"ValueError: why" in failed.stderr.read()
    killed = run("import time; time.sleep(600)")
    assert killed.poll() is None
    os.kill(killed.pid, signal.SIGTERM)
    killed.wait_for_end()
    assert Path(f"/proc/{killed.pid}").exists()  # not reaped: its number is still its own
    assert killed.wait() == killed.poll() == -signal.SIGTERM


CHILD = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
time.sleep(float(sys.argv[1]))
"""


def test_what_a_rank_started_ends_with_it(run: Run) -> None:
    rank = run(CHILD, "0")
    assert rank.stdout is not None
    child = int(rank.stdout.readline())
    assert rank.wait() == 0
    until(lambda: gone(child))


@pytest.mark.parametrize("which", ["launcher", "server"])
def test_a_rank_ends_with_its(which: str, run: Run) -> None:
    if which == "launcher":
        rank = run(CHILD, "600")
        assert rank.stdout is not None
        child = int(rank.stdout.readline())
        assert isinstance(rank, Forked)
        rank._link.close()
        rank.returncode = -signal.SIGKILL
    else:
        with serving() as other:
            rank = run(CHILD, "600", at=other)
            assert rank.stdout is not None
            child = int(rank.stdout.readline())
        assert rank.wait() == -signal.SIGKILL
    until(lambda: gone(rank.pid) and gone(child))


def test_after_threads_at_import_a_rank_starts_fresh(run: Run, tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    rank = run("", **{IMPORTS: "busy", "PYTHONPATH": str(tmp_path)})
    assert isinstance(rank, Fresh)
    assert rank.why.endswith("busy 1 threads run, of Python ['Thread-1 (wait)']")


def test_under_a_tracer_a_rank_starts_fresh(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.settrace(lambda *_: None)\n")
    rank = run("", **{"PYTHONPATH": str(tmp_path)})
    assert isinstance(rank, Fresh)
    assert rank.why.endswith("a tracer or profiler runs")


def test_a_server_that_stands_elsewhere_forks_nothing(run: Run) -> None:
    before = os.umask(0o027)
    try:
        rank = run("import os; print(oct(os.umask(0)))")
    finally:
        os.umask(before)
    assert isinstance(rank, Fresh)
    assert rank.why.endswith("stands elsewhere than the launcher, by ['Umask']")
    assert said(rank) == "0o27\n"


def test_where_no_server_is_there_a_rank_starts_fresh(run: Run, tmp_path: Path) -> None:
    rank = run("print(7)", at=str(tmp_path / "nobody"))
    assert isinstance(rank, Fresh)
    assert "No such file" in rank.why
    assert said(rank) == "7\n"


def test_a_module_that_is_not_there_is_the_ranks_to_miss(run: Run) -> None:
    rank = run("import not_there_at_all", **{IMPORTS: "not_there_at_all"})
    assert rank.stderr is not None
    assert b"ModuleNotFoundError" in rank.stderr.read()
    assert rank.wait() == 1
