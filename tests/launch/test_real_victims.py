"""Who is named where a real collective fails of it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from launch_scripts import outcome

TRAIN = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(3)
dist.all_reduce(x)
if rank == 1: {leave}
for _ in range(3): dist.all_reduce(x)
"""


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("torch"), reason="torch is needed")
@pytest.mark.parametrize(
    ("leave", "codes"),
    [
        ("sys.exit(0)", (1, 134)),  # a torch process that leaves with its group open may abort
        ("os.kill(os.getpid(), signal.SIGKILL)", (137,)),
    ],
)
def test_torch(tmp_path: Path, leave: str, codes: tuple[int, ...]) -> None:
    end = outcome(tmp_path, TRAIN.format(leave=leave))
    assert end.cause is not None
    assert end.cause.first.rank == 1
    assert end.exit_code in codes
