"""A job that is asked to leave, or loses a rank, ends where it would have ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from going_on_scripts import KERAS
from launch_scripts import alone, keras_on

from dream.launch.forks.foresight import IMPORTS

SLOW = "0.05"
pytestmark = pytest.mark.slow
Act = Callable[[int, subprocess.Popen[str]], None]
"""Given rank 1's process and the launcher."""


def command(script: Path, word: str, ranks: int, folder: Path, *more: str) -> list[str]:
    """Those of `more` before "--" are the launcher's."""
    where = more.index("--") if "--" in more else len(more)
    options = ["-n", str(ranks), "--checkpoint", str(folder), *more[:where]]
    rest = more[where + 1 :] or ("0",)
    out = str(folder.with_suffix(".json"))
    return [sys.executable, "-m", "dream", "run", *options, str(script), word, out, *rest]


def at_step(folder: Path, rank: int, least: int) -> int:
    """Return the process of a rank once it has come that far."""
    file = folder.with_suffix(f".json.step.{rank}")
    end = time.monotonic() + 120
    while time.monotonic() < end:
        said = file.read_text().split() if file.exists() else []
        if len(said) == 2 and int(said[0]) >= least:
            return int(said[1])
        time.sleep(0.01)
    raise AssertionError(f"rank {rank} has not come to step {least}")


def interrupted(
    arguments: list[str], folder: Path, act: Act, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a job, and do something to rank 1 or the launcher at step 9."""
    told = {**os.environ, **(env or {})}
    with subprocess.Popen(arguments, stdout=-1, stderr=-1, text=True, env=told) as job:
        try:
            act(at_step(folder, 1, 9), job)
            out, err = job.communicate(timeout=150)
        finally:
            job.kill()
    return subprocess.CompletedProcess(arguments, job.returncode, out, err)


def result(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(folder.with_suffix(".json").read_text())
    return told


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    names = one.keys() - {"from", "steps"}
    return float(max(np.abs(np.subtract(one[name], other[name])).max() for name in names))


LAUNCHER: tuple[str, Act, int] = ("mirrored", lambda _, job: job.send_signal(signal.SIGTERM), 1)
RANK: tuple[str, Act, int] = ("sharded", lambda rank, _: os.kill(rank, signal.SIGUSR1), 3)
ASKS = [
    pytest.param(*LAUNCHER, id="the launcher", marks=pytest.mark.exhaustive),
    pytest.param(*RANK, id="one rank"),
]


@pytest.mark.parametrize(("word", "ask", "then"), ASKS)
def test_all_save_and_leave_together(
    torch_script: Path, tmp_path: Path, undisturbed: dict[str, Any], word: str, ask: Act, then: int
) -> None:
    """And go on with another number of ranks."""
    folder = tmp_path / "run"
    left = interrupted(command(torch_script, word, 2, folder, "--", SLOW), folder, ask)
    assert left.returncode == 85, left.stderr
    assert "has saved and left" in left.stderr
    ran = subprocess.run(command(torch_script, "mirrored", then, folder), timeout=150, check=False)
    assert ran.returncode == 0
    told = result(folder)
    assert told["from"] >= 9
    assert told["steps"] == undisturbed["steps"] == 32
    assert difference(told, undisturbed) < 1e-6


def test_a_job_goes_on_without_its_dead_rank(
    torch_script: Path, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    folder = tmp_path / "run"
    options = ["--max-restarts", "2", "--every", "0.01"]
    arguments = command(torch_script, "mirrored", 2, folder, *options, "--", SLOW)
    ran = interrupted(arguments, folder, lambda rank, _: os.kill(rank, signal.SIGKILL))
    assert ran.returncode == 0, ran.stderr
    assert "Starting again, 1 of 2" in ran.stderr
    told = result(folder)
    assert 0 < told["from"] <= 10
    assert difference(told, undisturbed) < 1e-6


def test_a_bug_that_comes_back_ends_the_job(torch_script: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = ["--max-restarts", "5", "--every", "0.01"]
    arguments = command(torch_script, "mirrored", 2, folder, *options, "--", SLOW, "fault")
    ran = subprocess.run(arguments, capture_output=True, text=True, timeout=150, check=False)
    assert ran.returncode == 1
    assert "Starting again, 1 of 5" in ran.stderr
    assert "Starting again, 2" not in ran.stderr
    assert "the same error at the same step before (step 13)" in ran.stderr


TWICE = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
import dream

torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 4))
with dream.strategy("single") as strategy:
    for _ in range(2):
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        first, other = DataLoader(data, 4), DataLoader(data, 4)
        strategy.load(model=model, optimizer=optimizer, data=first)
        for (x,), (z,) in zip(first, other):
            optimizer.zero_grad()
            model(x + z).square().mean().backward()
            optimizer.step()
            __import__("time").sleep(0.05)
"""


def test_another_training_and_another_loader_are_told(tmp_path: Path) -> None:
    """The second of two folds would begin with the first one's weights."""
    script = tmp_path / "folds.py"
    script.write_text(TWICE)
    arguments = [sys.executable, "-m", "dream", "run", "-n", "1", "--every", "0.01"]
    arguments += ["--checkpoint", str(tmp_path / "run"), str(script)]
    ran = subprocess.run(arguments, capture_output=True, text=True, timeout=150, check=False)
    assert ran.returncode == 1
    assert "A job saves one training automatically" in ran.stderr
    assert ran.stderr.count("a loader is trained on whose place") == 1


NO_PLACE = """
import torch
from torch.utils.data import DataLoader, TensorDataset
import dream

torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 4))

def forever(loader):
    while True:
        yield from loader

with dream.strategy("single") as strategy:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    several, one = DataLoader(data, 4), DataLoader(data, 32)
    strategy.load(model=model, optimizer=optimizer, data={"several": several, "one": one})
    again = forever(one)
    for _ in range(15):
        for (x,) in several:
            (z,) = next(again)
            optimizer.zero_grad()
            (model(x).square().mean() + model(z).square().mean()).backward()
            optimizer.step()
"""


def test_a_training_that_cannot_be_saved_is_told(tmp_path: Path) -> None:
    """One loader has a single batch, so it is at its end whenever the other is asked."""
    script = tmp_path / "no_place.py"
    script.write_text(NO_PLACE)
    arguments = [sys.executable, "-m", "dream", "run", "-n", "1", "--every", "0.001"]
    arguments += ["--checkpoint", str(tmp_path / "run"), str(script)]
    ran = subprocess.run(arguments, capture_output=True, text=True, timeout=150, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("no checkpoint could be taken in 100 updates") == 1


UNSAVED = """
import torch
import dream

with dream.strategy("single") as strategy:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    print("before training", flush=True)
    for _ in ("once", "twice"):  # not counted: see test_untouched for those that are
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
"""


def test_a_script_that_loads_nothing_is_told_as_it_begins(tmp_path: Path) -> None:
    script = tmp_path / "unsaved.py"
    script.write_text(UNSAVED)
    arguments = [sys.executable, "-m", "dream", "run", "-n", "1"]
    for more, often in (["--checkpoint", str(tmp_path / "run")], 1), ([], 0):
        ran = subprocess.run(
            [*arguments, *more, str(script)], capture_output=True, text=True, timeout=150
        )
        assert ran.returncode == 0, ran.stderr
        assert ran.stderr.count("--checkpoint keeps nothing of this training") == often


def test_nothing_is_kept_where_nobody_asked(torch_script: Path, tmp_path: Path) -> None:
    ran = alone([str(torch_script), "single", str(tmp_path / "run.json"), "0"], "torch")
    assert ran.returncode == 0, ran.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.json", "run.json.step.0"]


def test_a_fit_that_asks_for_nothing_goes_on(tmp_path: Path) -> None:
    """Weights and the logs of all epochs are those of a fit that was not left."""
    script = tmp_path / "fit.py"
    script.write_text(KERAS)
    whole, folder, env = tmp_path / "whole", tmp_path / "run", keras_on("tensorflow")
    ran = alone([str(script), "single", f"{whole}.json", "0"], env[IMPORTS], env)
    assert ran.returncode == 0, ran.stderr
    job = command(script, "mirrored", 2, folder, "--", SLOW)
    left = interrupted(job, folder, LAUNCHER[1], env)
    assert left.returncode == 85, left.stderr
    again = command(script, "single", 1, folder)
    subprocess.run(again, check=True, timeout=150, env={**os.environ, **env})
    told = result(folder)
    assert told["steps"] == 8
    assert difference(told, result(whole)) < 1e-6
