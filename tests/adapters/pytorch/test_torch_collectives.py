"""A script ends while it still holds its communicator, or a model that was trained with it."""

import subprocess
import sys

import pytest

SCRIPT = """
import torch
from torch import distributed
import dream

ranks = dream.communicator("gloo", framework="torch")
x = torch.ones(1 << 20)
for _ in range(20):
    distributed.all_reduce(x)
"""
TRAINED = """
import atexit
from pathlib import Path

def told():  # registered first, it runs last
    names = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
    print("gloo's:", [name for name in names if "gloo" in name])

atexit.register(told)
TORCH
import dream

with dream.strategy("mirrored", reduction="REDUCTION"):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""
RUN = ["-c", "from dream.cli import main; main()", "run", "-n", "2"]


@pytest.mark.slow
def test_it_ends_well(tmp_path):
    """Three times, since ranks that hold on to the group abort two times out of three only."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for _ in range(3):
        _run(script)


@pytest.mark.parametrize("reduction", ["gloo", "shared_memory"])
def test_a_group_ends_before_the_interpreter_does(tmp_path, reduction):
    """The module that a model's DDP is held the group until the interpreter let go of it: it then
    joined the group's threads with Python's lock in its hand, for which they may wait."""
    script = tmp_path / "script.py"
    script.write_text(TRAINED.replace("REDUCTION", reduction).replace("TORCH", "import torch"))
    assert "gloo's: []" in _run(script)


@pytest.mark.slow
def test_a_group_ends_in_a_rank_that_was_not_forked(tmp_path):
    """What an optimizer, or DDP, imports after the group was made held it as the default of its
    functions. A parent that ranks are forked from has imported it before; nobody sees here that
    torch is wanted."""
    script = tmp_path / "script.py"
    unseen = "torch = __import__('importlib').import_module('torch')"
    script.write_text(TRAINED.replace("REDUCTION", "gloo").replace("TORCH", unseen))
    assert "gloo's: []" in _run(script)


def _run(script):
    done = subprocess.run(
        [sys.executable, *RUN, str(script)], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
