"""What the launcher keeps in memory: a job that starts again has lost little, and nothing stays."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from checkpoint_kills import Arrays
from going_on_scripts import KERAS, SCRIPT
from test_going_on import SLOW, command, difference, interrupted, result

from dream._errors import DreamError
from dream.checkpoint import CheckpointFolder
from dream.checkpoint.checkpointer import Parts
from dream.checkpoint.commits import Commits
from dream.checkpoint.content import CheckpointContent
from dream.checkpoint.storage import folder
from dream.launch.job import Job
from dream.launch.restarts import goes_on_from, keep_on_disk

LINE = "import os; print('kept in', os.environ.get('DREAM_COMMITS'), flush=True)\n"


def killed(script: Path, folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    """Kill a rank of a job that saves nothing on disk in time; how it ends, and what it says."""
    options = ("--every", "600", "--max-restarts", "1", "--commit-every", "3", *options)
    arguments = command(script, "mirrored", 2, folder, *options, "--", SLOW)
    ran = interrupted(arguments, folder, lambda rank, _: os.kill(rank, signal.SIGKILL))
    assert ran.returncode == 0, ran.stderr
    kept = Path(ran.stdout.split("kept in ")[1].split()[0])
    assert not kept.exists()
    return result(folder), ran.stderr


@pytest.mark.slow
def test_a_killed_rank_costs_the_steps_since_the_last_commit(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LINE + SCRIPT)
    folder = tmp_path / "run"
    told, said = killed(script, folder)
    assert told["from"] >= 6, told["from"]
    assert f"from step {told['from']}, kept in memory" in said
    assert CheckpointFolder(folder).newest() is not None  # soon after it went on from memory
    assert difference(told, undisturbed) < 1e-6


@pytest.mark.exhaustive
def test_a_fit_goes_on_from_memory(tmp_path: Path) -> None:
    script = tmp_path / "fit.py"
    script.write_text(LINE + KERAS)
    told, said = killed(script, tmp_path / "run", "--framework", "tensorflow")
    assert "kept in memory" in said
    folder = tmp_path / "undisturbed"
    line = command(script, "single", 1, folder, "--framework", "tensorflow")
    subprocess.run(line, check=True, timeout=300)
    assert difference(told, result(folder)) < 1e-6


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "word", ["sharded:zero=3", "sharded:zero=2", "hybrid:model=2,split=tensor"]
)
def test_split_trainings_go_on_from_memory(
    word: str, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LINE + SCRIPT)
    told, said = killed(script, tmp_path / "run", "--strategy", word)
    assert "kept in memory" in said
    assert difference(told, undisturbed) < 1e-6


def commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: str = "") -> Commits:
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setenv("DREAM_CHECKPOINT", str(tmp_path / "disk"))
    monkeypatch.setenv("DREAM_COMMITS", str(memory))
    monkeypatch.setenv("DREAM_COMMIT_STEPS", every)
    return Commits(cast(Any, SimpleNamespace(rank=0, world_size=1)), tmp_path / "disk")


def take(kept: Commits, step: int) -> None:
    held: Any = Arrays()
    kept.take(Parts({"": {"w": np.full(9, step)}}), step, held, extra={}, facts={})
    while kept._last is not None and not kept._last.settled:
        time.sleep(0.001)


def test_one_stays_and_is_never_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = commits(tmp_path, monkeypatch)
    for step in (1, 2, 3):
        assert kept.due() or step > 1
        take(kept, step)
    assert kept.folder is not None
    (place,) = kept.folder.whole()
    assert (kept.folder.load(place).models[""]["w"] == 3).all()
    assert [p.name for p in kept.folder.path.iterdir()] == [place.name]


def test_how_often_is_as_it_is_said_or_as_it_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = commits(tmp_path, monkeypatch, every="3")
    assert [often.step_ended() and often.due() for _ in range(7)] == [
        False, False, True, False, False, True, False
    ]  # fmt: skip
    clock = [0.0]
    (tmp_path / "memory").rmdir()
    kept = commits(tmp_path, monkeypatch)
    now = SimpleNamespace(monotonic=lambda: clock[0])
    monkeypatch.setattr("dream.checkpoint.commits.time", now)
    assert not kept.step_ended()
    assert kept.due()
    for passed, due in ((0.0, False), (0.5, False), (600.0, True)):
        if not passed:
            take(kept, 1)
            assert kept._last is not None
            kept._stood, kept._last.seconds = 0.05, 0.05
        clock[0] += passed
        assert kept.due() is due
    take(kept, 2)
    assert kept._last is not None
    kept._stood, kept._last.seconds = 0.05, 0.05
    clock[0] += 9.9
    assert not kept.due()
    clock[0] += 0.2
    assert kept.due()


def test_where_there_is_no_room_the_disk_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept = commits(tmp_path, monkeypatch)
    take(kept, 1)
    memory = kept.folder
    assert memory is not None

    def full(path: Path, size: int) -> None:
        raise DreamError(f"There is not enough memory. Received: {path}, {size}")

    monkeypatch.setattr(folder, "check_room", full)
    with caplog.at_level(logging.INFO, "dream"):
        take(kept, 2)
        kept._next = 0.0
        assert not kept.due()
        assert not kept.due()
    assert caplog.text.count("no more commits are kept in memory") == 1
    assert [place.name for place in memory.all()] == ["step-000000001"]


def test_another_folder_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert commits(tmp_path, monkeypatch).folder is not None
    assert Commits(cast(Any, SimpleNamespace()), tmp_path / "another").folder is None
    monkeypatch.delenv("DREAM_COMMITS")
    assert Commits(cast(Any, SimpleNamespace()), tmp_path / "disk").folder is None


def test_what_a_job_that_ends_has_in_memory_is_brought_to_the_disk(tmp_path: Path) -> None:
    disk, memory = CheckpointFolder(tmp_path / "disk"), tmp_path / "memory"
    job = Job(("script", "x.py"), 2, checkpoint=disk.path, commits=memory)
    keep_on_disk(job)
    assert "from the beginning" in goes_on_from(job)
    for step, there in ((4, disk), (7, CheckpointFolder(memory, in_memory=True))):
        there.save(CheckpointContent(step, {"": {"w": np.full(3, step)}}))
    assert goes_on_from(job) == ", from step 7, kept in memory"
    keep_on_disk(job)
    newest = disk.newest()
    assert newest is not None
    assert (disk.load(newest).models[""]["w"] == 7).all()
    keep_on_disk(job)
    assert len(disk.whole()) == 2
