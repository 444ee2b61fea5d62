"""Somebody else's engine starts the ranks: real ones, where they are installed (`make engines`)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import engine_digits as digits
import numpy as np
import pytest
from netns import DREAM
from sshd import ROOT_MAY

from dream.launch.joined.threads import cores

pytestmark = pytest.mark.slow

POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
ENGINES = {
    "Open MPI": ("mpirun.openmpi", "--oversubscribe", "-n", "2", sys.executable),
    "MPICH": ("mpirun.mpich", "-n", "2", sys.executable),
    "torchrun": TORCHRUN,
}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits.script("torch", tmp_path_factory.mktemp("engines"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> digits.Told:
    return digits.alone("torch", tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_of_another_engine_train_one_model(
    engine: str, script: Path, alone: digits.Told
) -> None:
    command = ENGINES[engine]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed: make engines")
    digits.start(script, command, ROOT_MAY | dict.fromkeys(POOLS, ""))
    told = digits.told(script.parent, 2)
    digits.check(told, alone, [(0, 0, 0), (1, 1, 0)])
    for rank in told:  # torchrun says 1 by itself
        threads, said = rank["threads"]
        assert str(threads) == said
        assert threads <= max(1, cores() // 2)


@pytest.mark.parametrize(
    ("nodes", "places"), [(1, [(0, 0, 0), (1, 1, 0)]), (2, [(0, 0, 0), (1, 0, 1)])]
)
def test_a_step_of_slurm(
    nodes: int,
    places: list[tuple[int, int, int]],
    slurm: Mapping[str, str],
    script: Path,
    alone: digits.Told,
    tmp_path: Path,
) -> None:
    """Two hosts find the job's secret in the home folder, which both have. Typed in a shell that
    srun has put on a terminal, whose variable each step inherits."""
    step = ("srun", f"-N{nodes}", "-n2", "--overcommit", sys.executable)
    digits.start(script, step, {**slurm, "SLURM_PTY_PORT": "4242", "HOME": str(tmp_path)})
    digits.check(digits.told(script.parent, 2), alone, places)
    assert (tmp_path / ".dream" / "secret").exists() == (nodes == 2)


GOES_ON = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import dream

torch.manual_seed(3)
x, y = torch.randn(61, 8), torch.randn(61, 2)
with dream.strategy() as strategy:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = DataLoader(TensorDataset(x, y), batch_size=16)
    at = strategy.load(model=model, optimizer=optimizer, data=batches)
    step = at.step if at else 0
    for _ in range(at.epoch if at else 0, 3):
        for inputs, target in batches:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), target).backward()
            optimizer.step()
            step += 1
            if step == 5 and len(sys.argv) > 2 and not at:
                if strategy.topology.rank == 0:
                    open(sys.argv[2] + ".part", "w").close()
                    __import__("os").rename(sys.argv[2] + ".part", sys.argv[2])
                while not strategy.leaving:
                    time.sleep(0.05)
if strategy.topology.rank == 0:
    torch.save((model.weight.tolist(), at.step if at else 0), sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_job_of_sbatch_is_requeued_and_goes_on_from_its_checkpoint(
    slurm: Mapping[str, str], tmp_path: Path
) -> None:
    """Two nodes, asked to leave by Slurm as before the end of their time."""
    import torch

    script = tmp_path / "goes_on.py"
    environ = {**os.environ, **slurm, "OMP_NUM_THREADS": "1", "DREAM_FORK_SERVER": ""}
    script.write_text(GOES_ON)
    subprocess.run([sys.executable, str(script), "alone.pt"], cwd=tmp_path, check=True, timeout=300)

    def told(*command: str) -> str:
        ran = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True,
                             timeout=300, check=False)  # fmt: skip
        assert ran.returncode == 0, ran
        return ran.stdout.strip()

    job = told(*DREAM, "run", "--on", "slurm", "--nnodes", "2", "-n", "1", "--time", "10:00",
               "--checkpoint", "saved", "--engine-option=--overcommit", script.name, "end.pt",
               "fifth")  # fmt: skip
    output = tmp_path / f"goes-on-{job}.out"
    try:
        await_file(tmp_path / "fifth", output)
        told("scancel", "--signal=TERM", job)
        limit = time.monotonic() + 120
        while not (tmp_path / "end.pt").exists():
            assert time.monotonic() < limit, output.read_text()[-3000:]
            time.sleep(0.5)
    finally:
        subprocess.run(["scancel", job], env=environ, check=False, timeout=60)
    weights, began = torch.load(tmp_path / "end.pt")
    assert 5 <= began < 12  # the ranks agree on leaving within some steps
    alone, _ = torch.load(tmp_path / "alone.pt")
    np.testing.assert_allclose(weights, alone, rtol=0, atol=1e-6)


def await_file(path: Path, output: Path) -> None:
    limit = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < limit, output.exists() and output.read_text()[-3000:]
        time.sleep(0.1)
