"""Ranks that stand still in every way that can be arranged: `dream where` says which rank, in what
phase of training and at which line of the script."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dream.stall.phases import Phase
from dream.stall.status import ProcessState, RankStatus
from dream.tools.where import find
from dream.tools.where import main as where
from dream.tools.where.find import RankView, RunningJob

LIMIT = 240.0
HERE = Path(__file__).parent


@dataclass
class Running:
    """A job under `dream run`, in a folder of its own."""

    folder: Path
    process: subprocess.Popen[str]

    @property
    def job(self) -> RunningJob:
        found: list[RunningJob] = []

        def come() -> bool:
            found[:] = [one for one in find.jobs() if one.number == self.process.pid]
            return bool(found)

        self.until(come, "job")
        return found[0]

    def until(self, come: Callable[[], object], what: str) -> None:
        end = time.monotonic() + LIMIT
        while not come():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < end, f"no {what}:\n{self.said()}"
            time.sleep(0.05)

    def wait_for(self, mark: str) -> None:
        self.until((self.folder / mark).exists, mark)

    def go(self, mark: str) -> None:
        (self.folder / f"go-{mark}").touch()

    def said(self) -> str:
        return (self.folder / "out").read_text()

    def views(self, seen: Callable[[list[RankView]], bool]) -> list[RankView]:
        """Look until what is seen is so."""
        found: list[RankView] = []

        def come() -> bool:
            found[:] = find.look(self.job)
            return seen(found)

        try:
            self.until(come, "such view")
        except AssertionError as error:
            raise AssertionError(f"{found}\n{error}") from None
        return found


@contextmanager
def running(
    folder: Path, script: str, *arguments: str, ranks: int = 2, inside: tuple[str, ...] = (),
    **environ: str,
) -> Iterator[Running]:  # fmt: skip
    """inside: a command that becomes the one behind it."""
    quiet = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "DREAM_STALL_SECONDS": "600"}
    command = ["run", "-n", str(ranks), "--all-output", str(HERE / script), str(folder), *arguments]
    with (folder / "out").open("w") as out:
        process = subprocess.Popen(
            [*inside, sys.executable, "-m", "dream", *command], env=os.environ | quiet | environ,
            stdout=out, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
    try:
        yield Running(folder, process)
    finally:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        process.wait(60)


OWN = Phase.OWN
STALLS = {
    "loader": (Phase.INPUT, "in __getitem__"),
    "behind": (OWN, "in stand"),
    "disk": (Phase.WRITING, "in stand"),
    "forward": (Phase.FORWARD, "in stand"),
    "lock": (OWN, "in lock"),
    "deadlock": (OWN, "in deadlock"),
    "swallowed": (OWN, "in stand"),
    "garbage": (OWN, "in stand"),
    "paging": (OWN, "in paging"),
    "compiling": (Phase.COMPILING, "in stand"),
}
QUICK = ("loader", "behind", "disk")


def _stands(job: Running, name: str) -> None:
    """Rank 1 is where it was put, by the line, and rank 0 waits for it."""
    phase, at = STALLS[name]
    job.wait_for(name)
    zero, one = job.views(lambda seen: all(v.status and v.status.stack for v in seen)
                          and bool(seen[0].status and seen[0].status.call))  # fmt: skip
    assert one.status is not None
    assert zero.status is not None
    assert (one.status.phase, one.status.call) == (phase, ""), one
    assert any(at in line for line in one.status.stack), one
    assert name not in ("lock", "deadlock", "paging") or at in one.line
    assert "where_" in one.line
    assert (" pages/s" in where.doing(one)) == (name == "paging"), where.doing(one)
    wait = where.standstill([zero, one])
    assert wait is not None
    assert (wait.waiting, wait.culprits) == ((0,), (1,))
    if name == "behind":
        assert one.status.steps == zero.status.steps - 1
    job.go(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reduction", "fates"),
    [
        pytest.param("shared_memory", QUICK, id="quick"),
        pytest.param("shared_memory", tuple(STALLS), marks=pytest.mark.exhaustive),
        pytest.param("gloo", tuple(STALLS), marks=pytest.mark.exhaustive),
        pytest.param("horovod", tuple(STALLS), marks=[pytest.mark.exhaustive, pytest.mark.ring]),
    ],
)
def test_where_a_rank_stands(tmp_path: Path, reduction: str, fates: tuple[str, ...]) -> None:
    with running(tmp_path, "where_stalls.py", reduction, *fates, "stopped") as job:
        for name in fates:
            _stands(job, name)
        job.wait_for("stopped")
        _stop_and_go_on(job)
        job.until(lambda: job.said().count("done") == 2, "end")


def _stop_and_go_on(job: Running) -> None:
    (pid,) = (rank.pid for rank in job.job.ranks if rank.rank == 1)
    os.kill(pid, signal.SIGSTOP)
    _, one = job.views(lambda seen: bool(seen[0].status and seen[0].status.call))
    assert one.status is not None
    assert one.status.state is ProcessState.STOPPED
    assert "is stopped" in where.doing(one)
    os.kill(pid, signal.SIGCONT)
    job.go("stopped")


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("reduction", ["gloo", pytest.param("horovod", marks=pytest.mark.ring)])
def test_a_rank_in_another_branch_and_one_whose_interpreter_is_held(
    tmp_path: Path, reduction: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path, "where_stalls.py", reduction, "held", "branch") as job:
        job.wait_for("held")
        _, one = job.views(
            lambda seen: bool(seen[1].status and seen[1].status.state is ProcessState.HELD)
        )
        assert "in held" in one.line
        (tmp_path / "pipe").write_bytes(b"!")
        job.wait_for("branch")
        zero, one = job.views(lambda seen: all(v.status and v.status.call for v in seen))
        assert zero.status is not None
        assert one.status is not None
        # In a loop's first passes the ranks also compare what its loss is a mean over.
        assert zero.status.call in ("backward()", "all_reduce()", "a collective of the ring")
        assert zero.status.phase is Phase.BACKWARD
        assert "barrier" in one.status.call
        assert "in branch" in one.line
        where.main(job.process.pid)
        told = " ".join(capsys.readouterr().out.split())
        call = zero.status.call
        assert f"They wait for one another: rank 0 in {call}, rank 1 in barrier()." in told


NAMESPACE = ("unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$0" "$@"')


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "nsenter"))),
    reason="a network namespace needs root and the programs ip, unshare and nsenter",
)
@pytest.mark.parametrize(
    "reduction",
    ["gloo", pytest.param("horovod", marks=[pytest.mark.exhaustive, pytest.mark.ring])],
)
def test_a_link_that_is_cut(
    tmp_path: Path, reduction: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """All ranks have come to the call, so none is named; when the link is back they go on."""
    with running(
        tmp_path, "where_stalls.py", reduction, "forward", inside=NAMESPACE, DREAM_FORK_SERVER=""
    ) as job:

        def link(state: str) -> None:
            namespace = ["nsenter", "--target", str(job.process.pid), "--net"]
            subprocess.run([*namespace, "ip", "link", "set", "lo", state], check=True, timeout=60)

        job.wait_for("forward")
        link("down")
        job.go("forward")
        both = job.views(lambda seen: all(v.status and v.status.call for v in seen))
        for one in both:
            assert one.status is not None
            assert one.status.phase is Phase.BACKWARD, one
            assert "where_stalls.py:" in one.line
        wait = where.standstill(both)
        assert wait is not None
        assert (wait.waiting, wait.culprits) == ((0, 1), ())
        where.main(job.process.pid)
        told = " ".join(capsys.readouterr().out.split())
        assert f"s in {both[0].status.call}. All ranks have come to it" in told, told  # type: ignore[union-attr]
        link("up")
        job.until(lambda: job.said().count("done") == 2, "end")


KERAS_STALLS = {
    "callback": OWN,
    "disk": Phase.WRITING,
    "loader": Phase.INPUT,
    "batch": Phase.INPUT,
}
OF_EITHER = {"lock": OWN, "deadlock": OWN, "swallowed": OWN, "garbage": OWN, "paging": OWN}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "reduction", "fates"),
    [
        (
            "tensorflow",
            "shared_memory",
            KERAS_STALLS | OF_EITHER | {"compiling": Phase.COMPILING},
        ),
        ("torch", "shared_memory", KERAS_STALLS | OF_EITHER),
        ("tensorflow", "grpc", KERAS_STALLS),
        pytest.param(
            "tensorflow",
            "horovod",
            KERAS_STALLS | OF_EITHER | {"compiling": Phase.COMPILING},
            marks=pytest.mark.ring,
        ),
    ],
)
@pytest.mark.exhaustive
def test_where_a_rank_of_keras_stands(
    tmp_path: Path, backend: str, reduction: str, fates: dict[str, Phase]
) -> None:
    with running(
        tmp_path, "where_keras.py", reduction, *fates, "stopped", KERAS_BACKEND=backend
    ) as job:
        for name, phase in fates.items():
            job.wait_for(name)
            _, one = job.views(lambda seen: bool(seen[0].status and seen[0].status.call))
            assert one.status is not None
            assert one.status.phase is phase, (name, one)
            assert not one.status.call, one
            assert "where_" in one.line
            assert (" pages/s" in where.doing(one)) == (name == "paging"), where.doing(one)
            job.go(name)
        job.wait_for("stopped")
        _stop_and_go_on(job)
        job.until(lambda: job.said().count("done") == 2, "end")


def test_a_wait_for_ranks_of_another_host() -> None:
    status = RankStatus(0, call="backward()", waited=14.0)
    here = [RankView(0, os.getpid(), status, "train.py:3 in step", 1)]
    wait = where.standstill(here)
    assert wait is not None
    told = "Rank 0 has waited 14 s in backward() for a rank of another host, or for what it sends."
    assert where._told(wait, here, 2) == told


@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One rank alone is seen too; a number that is none is told those that are."""
    with running(tmp_path, "where_stalls.py", "auto", "forward", ranks=1) as job:
        job.until(lambda: job.job.ranks[0].facts is not None, "block")
        number = job.process.pid
        job.until(lambda: find.look(job.job)[0].status.steps > 0, "step")  # type: ignore[union-attr]
        where.main(number, json=True)
        (said,) = json.loads(capsys.readouterr().out)
        assert (said["job"], said["world_size"], len(said["ranks"])) == (number, 1, 1)
        assert said["ranks"][0]["resident_bytes"] > 1 << 20
        where.main(number)
        told = capsys.readouterr().out
        assert f"job {number}: " in told
        assert max(len(line) for line in told.splitlines()[1:3]) <= 80
        with pytest.raises(Exception, match=f"Received: 1; running are: .*{number}"):
            where.main(1)
