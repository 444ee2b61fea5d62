"""Somebody else's engine starts the ranks: real ones, where they are installed (`make engines`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slurm import cluster, why_not

SCRIPT = """
import json, os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import dream

torch.manual_seed(3)
x, y = torch.randn(61, 8), torch.randn(61, 2)
with dream.strategy() as strategy:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        for inputs, target in DataLoader(TensorDataset(x, y), batch_size=16):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), target).backward()
            optimizer.step()
place = strategy.topology
told = {"weights": model.weight.tolist(), "rank": place.rank, "ranks": place.world_size,
        "local": place.local_rank, "node": place.node_rank}
with open(os.path.join(sys.argv[1], f"{place.world_size}-{place.rank}.json"), "w") as file:
    json.dump(told, file)
"""
ROOT_MAY = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
ENGINES = {
    "Open MPI": ("mpirun.openmpi", "--oversubscribe", "-n", "2", sys.executable),
    "MPICH": ("mpirun.mpich", "-n", "2", sys.executable),
    "torchrun": TORCHRUN,
}
Told = dict[str, Any]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("engines") / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def alone(script: Path) -> Told:
    return start(script, [sys.executable], ranks=1)[0]


def start(script: Path, engine: Sequence[str], *, ranks: int) -> list[Told]:
    """What each rank of a job wrote."""
    environ = {**os.environ, **ROOT_MAY, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [*engine, str(script), str(script.parent)], env=environ, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    files = [script.parent / f"{ranks}-{rank}.json" for rank in range(ranks)]
    told = [json.loads(file.read_text()) for file in files]
    for file in files:
        file.unlink()
    return told


@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_of_another_engine_train_one_model(engine: str, script: Path, alone: Told) -> None:
    command = ENGINES[engine]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed: make engines")
    told = start(script, command, ranks=2)
    assert [(rank["rank"], rank["local"], rank["node"]) for rank in told] == [(0, 0, 0), (1, 1, 0)]
    assert told[0]["weights"] == told[1]["weights"]
    np.testing.assert_allclose(told[0]["weights"], alone["weights"], rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    if reason := why_not():
        pytest.skip(reason)
    with cluster(tmp_path_factory.mktemp("slurm")) as environ:
        yield environ


@pytest.mark.parametrize(("nodes", "places"), [(1, [(0, 0), (1, 0)]), (2, [(0, 0), (0, 1)])])
def test_a_step_of_slurm(
    nodes: int,
    places: list[tuple[int, int]],
    slurm: Mapping[str, str],
    script: Path,
    alone: Told,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Two hosts find the job's secret in the home folder, which both have. Typed in a shell that
    srun has put on a terminal, whose variable each step inherits."""
    monkeypatch.setenv("SLURM_PTY_PORT", "4242")
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
    monkeypatch.setenv("HOME", str(tmp_path))
    step = ("srun", f"-N{nodes}", "-n2", "--overcommit", sys.executable)
    told = start(script, step, ranks=2)
    assert [(rank["local"], rank["node"]) for rank in told] == places
    assert told[0]["weights"] == told[1]["weights"]
    np.testing.assert_allclose(told[0]["weights"], alone["weights"], rtol=0, atol=1e-6)
    assert (tmp_path / ".dream" / "secret").exists() == (nodes == 2)
