"""What launchers of several hosts keep in memory: a host that has nothing gets it from another."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from launch_scripts import ON_TORCH
from test_elastic import SECONDS, Training, free_port, host, same, training

import dream
from dream.checkpoint import CheckpointContent, CheckpointFolder, hosts

pytestmark = pytest.mark.slow
__all__ = ["free_port"]
OFTEN = ("--every", "600", "--commit-every", "1", "--max-restarts", "2")


def on_disk(job: Training) -> list[str]:
    return [path.name for path in (job.folder / "kept").glob("step-*")]


def from_memory(job: Training, node: int, *steps: int) -> None:
    """Hold that a host said from which step on it starts again, of its memory."""
    assert any(f"from step {step}, kept in memory" in job.said(node) for step in steps), job.said(
        node
    )


@pytest.mark.exhaustive
def test_a_rank_that_dies_costs_the_steps_since_the_last_commit(
    torch_script: Path, undisturbed: dict[str, object], free_port: int, tmp_path: Path
) -> None:
    """Two hosts of two ranks, of which each host's write what they keep."""
    with training(torch_script, "mirrored", tmp_path / "job", "0.2") as job:
        for node in (0, 1):
            job.start(*host(free_port, node, "2"), *OFTEN, "-n", "2", node=node)
        os.kill(job.until("all ranks", 3, 7), signal.SIGKILL)
        assert not on_disk(job)
        told = job.end()
    same(told, undisturbed)
    step = told["from"]
    assert isinstance(step, int)
    assert step >= 4
    for node in (0, 1):
        from_memory(job, node, step, step - 1)


@pytest.mark.parametrize("node", [1, pytest.param(0, marks=pytest.mark.exhaustive)])
def test_a_host_that_comes_back_gets_what_another_has(
    torch_script: Path, undisturbed: dict[str, object], free_port: int, tmp_path: Path, node: int
) -> None:
    with training(torch_script, "mirrored", tmp_path / "job", "0.2") as job:
        for each in (0, 1):
            job.start(*host(free_port, each, "2"), *OFTEN, node=each)
        job.until("both hosts", 1, 7)
        job.kill(node)
        assert not on_disk(job)
        job.start(*host(free_port, node, "2"), *OFTEN, node=node)
        told = job.end()
    same(told, undisturbed)
    step = told["from"]
    assert isinstance(step, int)
    assert step >= 4
    from_memory(job, 1 - node, step)


@pytest.mark.exhaustive
def test_a_host_that_is_lost_leaves_what_it_had_to_the_others(
    torch_script: Path, undisturbed: dict[str, object], free_port: int, tmp_path: Path
) -> None:
    with training(torch_script, "mirrored", tmp_path / "job", "0.2") as job:
        for node in (0, 1):
            job.start(*host(free_port, node, "1:2"), *OFTEN, node=node)
        job.until("both hosts", 1, 7)
        job.kill(1)
        told = job.end()
    same(told, undisturbed)
    assert isinstance(told["from"], int)
    from_memory(job, 0, told["from"])


@pytest.mark.exhaustive
def test_what_hosts_have_when_they_end_is_brought_to_the_disk(
    torch_script: Path, free_port: int, tmp_path: Path
) -> None:
    """By one of them: they have the same."""
    with training(torch_script, "mirrored", tmp_path / "job", "0.2") as job:
        for node in (0, 1):
            job.start(*host(free_port, node, "2"), *OFTEN[:-1], "1", node=node)
        for _ in range(2):
            os.kill(job.until("both hosts", 1, 7), signal.SIGKILL)
            Path(f"{job.out}.step.1").unlink()
        for node in (0, 1):
            assert job.launchers.pop(node).wait(SECONDS) != 0
    said = job.said(0) + job.said(1)
    assert said.count("The in-memory snapshot is saved as") == 1, said
    assert len(on_disk(job)) <= 2


def brought(folder: str) -> tuple[str, float]:
    """Rank 1 has the newest, rank 0 an older one; each counts as a host."""
    hosts._PIECE = 1000
    with dream.strategy("mirrored", framework="torch") as strategy:
        ranks = strategy.communicator
        own = CheckpointFolder(Path(folder) / str(ranks.rank), in_memory=True)
        kept = {"w": np.arange(5000.0) + ranks.rank, "none": np.zeros(0)}
        own.save(CheckpointContent(3 + ranks.rank, {"": kept}))
        memory = hosts.HostMemory(ranks, own, ranks.rank)
        newest = memory.newest()
        assert newest is not None
        memory.bring(newest)
        place = own.newest()
        assert place is not None
        found = own.load(place).models[""]["w"]
        return place.name, float(np.abs(found - kept["w"]).max()) - (1 - ranks.rank)


def test_it_comes_in_pieces(tmp_path: Path) -> None:
    found = dream.launch(brought, str(tmp_path), n=2, **ON_TORCH)
    assert found == [("step-000000004", 0.0)] * 2
