"""Every engine's ranks on two hosts of two train the same model as one device does, in torch and in
Keras on TensorFlow."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import engine_digits as digits
import netns
import pytest
from netns import DREAM, Started
from sshd import TOKEN, Hosts

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]
Run = Callable[[Path], None]
"""Starts a script on two hosts of two ranks, and returns at its good end."""


@pytest.fixture(scope="module", params=["torch", "keras"])
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def alone(framework: str, tmp_path_factory: pytest.TempPathFactory) -> digits.Told:
    return digits.alone(framework, tmp_path_factory.mktemp("alone"))


def ended(processes: Sequence[netns.subprocess.Popen[str]]) -> None:
    for said in netns.ends(processes, time.monotonic(), 600):
        assert said.code == 0, said.err[-3000:]


@pytest.fixture
def torchrun(hosts: Hosts, started: Started) -> Run:
    """Typed on each host."""
    command = (sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2")
    command += (f"--master-addr={hosts.trained[0].address}", "--master-port=29500")

    def run(script: Path) -> None:
        ended([
            started.on(host, *command, f"--node-rank={i}", str(script), str(script.parent),
                       env={"DREAM_TOKEN": TOKEN})
            for i, host in enumerate(hosts.trained)
        ])  # fmt: skip

    return run


@pytest.fixture
def sshd(hosts: Hosts, started: Started) -> Run:
    return lambda script: ended([hosts.run(started, str(script), str(script.parent))])


def mpirun(make: str, hosts: Hosts, started: Started, folder: Path) -> Run:
    """It finds ssh by PATH, and the host of rank 0 by what `dream run --on mpi` tells it."""
    if shutil.which(make) is None:
        pytest.skip(f"{make} is not installed: make engines")
    environ = hosts.path(make, folder / "bin")
    command = (*DREAM, "run", "--on", "mpi", "--hosts", hosts.names)
    return lambda script: ended(
        [started.on(hosts.typed, *command, str(script), str(script.parent), env=environ)]
    )


@pytest.fixture
def open_mpi(hosts: Hosts, started: Started, tmp_path: Path) -> Run:
    return mpirun("mpirun.openmpi", hosts, started, tmp_path)


@pytest.fixture
def mpich(hosts: Hosts, started: Started, tmp_path: Path) -> Run:
    return mpirun("mpirun.mpich", hosts, started, tmp_path)


@pytest.fixture
def srun(slurm: Mapping[str, str]) -> Run:
    step = ("srun", "-N2", "--ntasks-per-node=2", "--overcommit", sys.executable)
    return lambda script: digits.start(script, step, slurm)


@pytest.fixture
def ray(raylets: str) -> Run:
    command = (*DREAM, "run", "--on", "ray", "--address", raylets, "--nnodes", "2", "-n", "2")
    return lambda script: digits.start(script, command)


@pytest.mark.parametrize("engine", ["torchrun", "sshd", "open_mpi", "mpich", "srun", "ray"])
def test_two_hosts_train_as_one_device(
    engine: str, framework: str, alone: digits.Told, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    run: Run = request.getfixturevalue(engine)
    run(digits.script(framework, tmp_path))
    said = digits.told(tmp_path, 4)
    digits.check(said, alone, digits.TWO_HOSTS)
    assert {rank["hosts"] for rank in said} == {2}
