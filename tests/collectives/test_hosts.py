"""Ranks that share no memory compare their calls by messages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ranks_job
from calls import Asked
from ranks_job import Ranks
from test_agreement import MISMATCHES
from test_table import fault


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.exhaustive)])
def two_hosts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ranks]:
    log = tmp_path_factory.mktemp("hosts") / "log"
    with ranks_job.ranks("torch", request.param, log, hosts=2) as up:
        yield up


def test_the_board_is_a_mesh(two_hosts: Ranks) -> None:
    assert two_hosts.gave("board", "gloo") == ["ConnectedBoard"] * two_hosts.size


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "scatter", "all_to_all", "send"])
def test_is_numpys(two_hosts: Ranks, operation: str) -> None:
    op = "sum" if operation == "all_reduce" else None
    rows = 0 if operation == "all_reduce" else 1
    asked = Asked(operation, "float32", (2 * two_hosts.size, 3), op, rows=rows)
    assert not fault(two_hosts, "gloo", asked)


@pytest.mark.parametrize("what", MISMATCHES)
def test_named_on_every_rank(two_hosts: Ranks, what: str) -> None:
    most, odd = MISMATCHES[what]
    for said, after in two_hosts.gave("differing", "gloo", what):
        assert said.startswith("Desynchronized"), said
        assert most in said
        assert odd in said
        assert np.all(np.array(after) == two_hosts.size)


@pytest.mark.exhaustive
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_hierarchical_training_is_that_of_one_device(framework: str, tmp_path: Path) -> None:
    """Two hosts of two ranks each."""
    script = str(Path(__file__).with_name("hosts_train.py"))
    environ = os.environ | ranks_job.QUIET | {"DREAM_TOKEN": "f" * 32, "KERAS_BACKEND": framework}
    alone = [[sys.executable, script, framework, str(tmp_path / "alone"), "single"]]
    words = [script, framework, str(tmp_path / "all"), "multi_worker_mirrored"]
    for commands in (alone, [[*command, *words] for command in ranks_job.commands(4, hosts=2)]):
        jobs = [
            subprocess.Popen(
                command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            for command in commands
        ]
        said = [job.communicate(timeout=400)[0] for job in jobs]
        assert [job.returncode for job in jobs] == [0] * len(jobs), "\n".join(said)
    one = np.load(tmp_path / "alone.0.npz")
    for rank in range(4):
        learned = np.load(tmp_path / f"all.{rank}.npz")
        for name in one.files:
            np.testing.assert_allclose(learned[name], one[name], rtol=0, atol=1e-6)
