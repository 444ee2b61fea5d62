"""A mismatch is an error on every rank, which names ranks and calls; then all goes on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import ranks_job
from cells import over
from conftest import Job

MISMATCHES = {
    "operation": ("all_reduce(op='sum') of float32 (2, 3)", "broadcast(root=0) of float32 (2, 3)"),
    "op": ("all_reduce(op='sum')", "all_reduce(op='max')"),
    "shape": ("float32 (2, 3)", "float32 (2, 2)"),
    "dtype": ("of float32 (2, 3)", "of float64 (2, 3)"),
    "root": ("broadcast(root=0)", "broadcast(root=1)"),
    "count": ("of float32 (2, 3)", "of 2 tensors: float32 (2, 3), float32 (2, 3)"),
    "rest": ("all_gather() of float32 (*, 3)", "all_gather() of float32 (*, 2)"),
    "algorithm": ("algorithm='naive'", "algorithm='ring'"),
}


@pytest.mark.parametrize("what", MISMATCHES)
@over()
def test_named_on_every_rank(
    job: Job, framework: str, size: int, reduction: str, what: str
) -> None:
    found = job(framework, size).gave("differing", reduction, what)
    most, odd = MISMATCHES[what]
    for said, after in found:
        assert said.startswith("Desynchronized"), said
        assert f"rank{'s' if size > 2 else ''} {', '.join(map(str, range(size - 1)))}: " in said
        assert f"rank {size - 1}: " in said
        assert most in said, said
        assert odd in said, said
        assert after == [[float(size)] * 3] * 2
    assert len({said for said, _ in found}) == 1


@over()
def test_another_order(job: Job, framework: str, size: int, reduction: str) -> None:
    for said, after in job(framework, size).gave("out_of_order", reduction):
        assert all(text.startswith("Desynchronized") for text in said), said
        assert after == [float(size)]


@over(2, 3, framework="tensorflow")
def test_a_graph_keeps_the_order(job: Job, framework: str, size: int, reduction: str) -> None:
    """Of a sum, and of what only moves, where nothing compares the calls."""
    ranks = np.arange(size)
    given = np.arange(size) + 10 * ranks[:, None]
    total = given.sum(axis=0).tolist()
    for rank, found in enumerate(job(framework, size).gave("side_by_side", reduction)):
        turned = given[:, rank]
        wanted = [total, turned, given[0], given[:, 0], 2 * given[-1], 3 * turned]
        assert found == [list(values) for values in wanted]


def test_who_never_comes_is_named(tmp_path: Path) -> None:
    with ranks_job.ranks("torch", 3, tmp_path / "log", DREAM_STALL_SECONDS="4") as three:
        found = three.gave("one_stays_away", "gloo", str(tmp_path))
        for said in found[:2]:
            assert said.startswith("Desynchronized: Rank 2 did not come to all_reduce"), said
            assert "within 4 s" in said
            assert "rank 2 was last in barrier()" in said
            assert "DREAM_STALL_SECONDS" in said
        assert found[2].startswith("Desynchronized"), found[2]
        assert "ranks 0, 1: gave up waiting" in found[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "reduction"),
    [
        ("torch", "gloo"),
        pytest.param("tensorflow", "grpc", marks=pytest.mark.exhaustive),
        pytest.param("torch", "shared_memory", marks=pytest.mark.exhaustive),
        pytest.param("tensorflow", "shared_memory", marks=pytest.mark.exhaustive),
    ],
)
def test_who_is_gone_is_named(framework: str, reduction: str) -> None:
    said = survivor(framework, reduction)
    assert "WorkerFailed: Rank 1 is gone" in said, said
    assert "all_reduce(op='sum') of float32 (2,)" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "framework", [pytest.param("torch", marks=pytest.mark.exhaustive), "tensorflow"]
)
def test_who_dies_in_training_is_named(framework: str) -> None:
    """In shared memory, where gradients are reduced without a comparison of calls."""
    said = survivor(framework, "shared_memory", "fit")
    assert "WorkerFailed: Rank 1 is gone" in said, said


def survivor(*arguments: str) -> str:
    """What rank 0 prints when rank 1 dies, without a launcher that would end them both."""
    script = Path(__file__).with_name("one_dies.py")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    place |= {"MASTER_PORT": str(port), **ranks_job.QUIET}
    place |= {"DREAM_STALL_SECONDS": "600"}  # nobody waits for so long here
    two = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env=os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        return two[0].communicate(timeout=500)[0]
    finally:
        for one in two:
            one.kill()
            one.communicate()
