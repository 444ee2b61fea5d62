"""A script ends while it still holds its communicator."""

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
RUN = ["-c", "from dream.cli import main; main()", "run", "-n", "2"]


@pytest.mark.slow
def test_it_ends_well(tmp_path):
    """Three times, since ranks that hold on to the group abort two times out of three only."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, *RUN, str(script)], capture_output=True, text=True, timeout=500
        )
        assert done.returncode == 0, done.stderr
