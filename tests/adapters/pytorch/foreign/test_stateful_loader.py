"""torchdata's StatefulDataLoader, made before the block or in it: whole on every rank, with a state
of its own that any other of them takes."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = """
import torch, dream
from torchdata.stateful_dataloader import StatefulDataLoader

before = StatefulDataLoader(torch.arange(10.0), batch_size=4)
with dream.strategy("mirrored"):
    model = torch.nn.Linear(1, 1)
    inside = StatefulDataLoader(torch.arange(10.0), batch_size=4)
    for x in before:
        model(x[:, None]).mean().backward()
        state = before.state_dict()
        break
    inside.load_state_dict(state)
    print("left", [x.tolist() for x in inside])
"""


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("torchdata"), reason="torchdata is not installed")
def test_a_state_of_one_is_taken_by_another(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "dream", "run", "-n", "2", "--all-output", "script.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("left [[4.0, 5.0, 6.0, 7.0], [8.0, 9.0]]") == 2
