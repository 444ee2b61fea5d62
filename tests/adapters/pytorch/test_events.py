"""An untouched script's SummaryWriter in a job: one run, with each value once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

import dream
from dream.launch.forks.foresight import IMPORTS

SCRIPT = """
import os, sys, torch
from torch.utils.tensorboard import SummaryWriter
import dream

rank = int(os.environ["RANK"])
before, made_up = SummaryWriter("before"), SummaryWriter()
with dream.strategy("mirrored"):
    inside, own = SummaryWriter("inside"), SummaryWriter(f"rank-{rank}")
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 2)).mean()
        loss.backward()
        optimizer.step()
        for writer in (before, made_up, inside, own):
            writer.add_scalar("loss", loss.item(), step)
    inside.add_hparams({"lr": 0.1}, {"last": 1.0}, run_name="tried")
    inside.add_hparams({"lr": 0.2}, {"last": 1.0})
    inside.add_scalars("both", {"one": 1.0, "two": 2.0})
    inside.add_embedding(torch.ones(4, 2))
    inside.close()
for step in range(3, 5):
    before.add_scalar("loss", 0.0, step)
for writer in (before, made_up, own):
    writer.close()
"""
LIMIT = 300
WITHOUT = "import sys, types; sys.modules['tensorboard.compat.notf'] = types.ModuleType('notf')"
"""TensorBoard imports TensorFlow where it is installed and this is not."""


def steps_of(files: list[str]) -> list[list[int]]:
    """Return the steps of the values of `loss` in each file."""
    exec(WITHOUT)
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return [
        [
            event.step
            for event in EventFileLoader(file).Load()
            if any(value.tag == "loss" for value in event.summary.value)
        ]
        for file in files
    ]


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("tensorboard"), reason="tensorboard is not installed")
@pytest.mark.parametrize(
    ("first", "imports"),
    [(WITHOUT, "torch"), pytest.param("", "torch,tensorflow", marks=pytest.mark.exhaustive)],
    ids=["by itself", "by TensorFlow"],
)
def test_a_summary_writer_writes_once(tmp_path: Path, first: str, imports: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(first + SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "dream", "run", "-n", "2", str(script)],
        cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", IMPORTS: imports},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    files = [file.relative_to(tmp_path) for file in tmp_path.rglob("events*")]
    folders = Counter(file.parts[0] for file in files)
    expected = {"before": 1, "runs": 1, "inside": 5, "rank-0": 1, "rank-1": 1}
    assert folders == expected, (files, done.stderr)
    written = [str(tmp_path / file) for file in files]
    (found,) = dream.launch(steps_of, written, n=1, framework="torch", timeout=LIMIT)
    for file, steps in zip(files, found, strict=True):
        if len(file.parts) == 2 or file.parts[0] == "runs":
            assert steps == [*range(5 if file.parts[0] == "before" else 3)], file
