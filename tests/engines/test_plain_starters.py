"""Ranks that srun and mpirun start by themselves, without `dream run`: dealt out in any order and
number, over Horovod's ring, with TensorFlow set up from outside, and one of them failing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import engine_digits as digits
import netns
import pytest
from netns import Started
from sshd import ROOT_MAY, TOKEN, Hosts

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]
UNEVEN = [(0, 0, 0), (1, 1, 0), (2, 0, 1)]
CYCLIC = [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]
HIERARCHICAL = 'reduction="hierarchical"'


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, digits.Told]:
    folder = tmp_path_factory.mktemp("alone")
    return {framework: digits.alone(framework, folder) for framework in ("torch", "keras")}


@pytest.mark.parametrize(
    ("options", "places", "named"),
    [
        (("-n3",), UNEVEN, HIERARCHICAL),
        (("-n4", "--distribution=cyclic"), CYCLIC, HIERARCHICAL),
        pytest.param(("-n3",), UNEVEN, '"horovod"', marks=pytest.mark.ring),
        pytest.param(("-n4", "--distribution=cyclic"), CYCLIC, '"horovod"', marks=pytest.mark.ring),
    ],
)
def test_a_step_of_slurm_deals_tasks_as_it_likes(
    options: tuple[str, ...],
    places: list[tuple[int, int, int]],
    named: str,
    slurm: Mapping[str, str],
    alone: Mapping[str, digits.Told],
    tmp_path: Path,
) -> None:
    script = digits.script("torch", tmp_path, named)
    step = ("srun", "-N2", "--overcommit", *options, sys.executable)
    digits.start(script, step, {**slurm, "HOME": str(tmp_path)})
    digits.check(digits.told(tmp_path, len(places)), alone["torch"], places)


@pytest.mark.parametrize("make", ["mpirun.openmpi", "mpirun.mpich"])
def test_mpirun_deals_ranks_out_host_by_host(
    make: str,
    hosts: Hosts,
    started: Started,
    alone: Mapping[str, digits.Told],
    tmp_path: Path,
) -> None:
    if shutil.which(make) is None:
        pytest.skip(f"{make} is not installed: make engines")
    first, second, here = (host.address for host in (*hosts.trained, hosts.typed))
    environ = {**hosts.path(make, tmp_path / "bin"), "DREAM_TOKEN": TOKEN,
               "MASTER_ADDR": first, "MASTER_PORT": "29500"}  # fmt: skip
    options = ["-hosts", f"{first},{second}", "-ppn", "1", "-localhost", here]
    if "open" in make:
        options = ["--host", f"{first}:2,{second}:2", "--map-by", "node"]
        options += ["-x", "DREAM_TOKEN", "-x", "MASTER_ADDR", "-x", "MASTER_PORT"]
    script = digits.script("torch", tmp_path, HIERARCHICAL)
    command = ("mpirun", *options, "-n", "4")
    command += (sys.executable, str(script), str(tmp_path))
    (said,) = netns.ends([started.on(hosts.typed, *command, env=environ)], time.monotonic(), 600)
    assert said.code == 0, said.err[-3000:]
    digits.check(digits.told(tmp_path, 4), alone["torch"], CYCLIC)


@pytest.mark.parametrize(
    ("named", "asked"),
    [
        pytest.param('"multi_worker_mirrored", reduction="horovod"', "", marks=pytest.mark.ring),
        ("", "mirrored:reduction=grpc"),
        pytest.param("", "horovod", marks=pytest.mark.ring),
    ],
)
@pytest.mark.parametrize("make", ["mpirun.openmpi", "mpirun.mpich"])
def test_keras_of_mpirun(
    make: str, named: str, asked: str, alone: Mapping[str, digits.Told], tmp_path: Path
) -> None:
    """An operation comes before the block, where DREAM_STRATEGY names the strategy: TensorFlow is
    set up when it is imported."""
    if shutil.which(make) is None:
        pytest.skip(f"{make} is not installed: make engines")
    script = digits.script("keras", tmp_path, named, "keras.ops.ones(3) + 1" if asked else "")
    options = ("--oversubscribe",) if "open" in make else ()
    environ = {**ROOT_MAY, "DREAM_STRATEGY": asked}
    digits.start(script, (make, *options, "-n", "2", sys.executable), environ)
    digits.check(digits.told(tmp_path, 2), alone["keras"], [(0, 0, 0), (1, 1, 0)])


@pytest.mark.parametrize("first", [0, 2])
def test_the_other_ranks_of_a_step_name_the_one_that_failed(
    first: int, slurm: Mapping[str, str], tmp_path: Path
) -> None:
    """srun leaves the others running; each says it on its own output."""
    script = digits.script("torch", tmp_path)
    inside = f"        if strategy.topology.rank == {first}: raise ValueError('this one')\n"
    line = "        optimizer.zero_grad()\n"
    script.write_text(script.read_text().replace(line, inside + line))
    ran = subprocess.run(
        ["srun", "-N2", "-n3", "--overcommit", "-l", sys.executable, str(script), str(tmp_path)],
        env={**os.environ, **slurm, "HOME": str(tmp_path)}, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert ran.returncode != 0
    for rank in {0, 1, 2} - {first}:
        said = f"^{rank}: .*dream: Rank {first} failed first at {re.escape(str(script))}:"
        assert re.search(said, ran.stderr, re.MULTILINE), ran.stderr
    assert "ValueError: this one" in ran.stderr
