"""A job that TF_CONFIG describes: chief, worker and ps, each started by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from launch_scripts import row_of_ports

SCRIPT = """
import sys
import keras, numpy as np
import dream
with dream.strategy(*sys.argv[1:]) as strategy:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    model.fit(np.ones((48, 4), "float32"), np.ones((48, 2), "float32"), batch_size=4, verbose=0)
print(strategy.name, strategy.topology.rank, strategy.staleness().updates)
"""
TASKS = [("chief", 0), ("worker", 0), ("ps", 0)]


def start(script: Path, *arguments: str) -> list[subprocess.Popen[str]]:
    chief, worker, server = (f"127.0.0.1:{port}" for port in row_of_ports(3))
    cluster = {"chief": [chief], "worker": [worker], "ps": [server]}
    env = os.environ | {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env={**env, "TF_CONFIG": json.dumps(
                {"cluster": cluster, "task": {"type": kind, "index": index}})},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for kind, index in TASKS
    ]  # fmt: skip


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    return file


@pytest.mark.slow
def test_the_servers_task_serves_and_leaves_well(script: Path) -> None:
    """No name is given: a cluster with servers says it."""
    ended = [(p.communicate(timeout=500), p.returncode) for p in start(script)]
    for rank, ((said, errors), code) in enumerate(ended):
        assert code == 0, errors
        assert said == (f"parameter_server {rank} 12\n" if rank < 2 else "")


def test_a_strategy_without_servers_says_so(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys, dream\ndream.strategy(sys.argv[1])")
    ended = [(p.communicate(timeout=500), p.returncode) for p in start(script, "mirrored")]
    for (_, errors), code in ended:
        assert code == 1
        assert "'mirrored' has no servers. Received: 1 of 3 tasks" in errors
