"""A classifier of small images: what every engine's ranks train, and one device. scikit-learn, for
its digits, would take each rank as long to import as torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Told = dict[str, Any]

_DATA = """
import json, os, sys
import numpy as np
draw = np.random.default_rng(0)
images, labels = draw.uniform(0, 16, (389, 64)), draw.integers(0, 10, 389)
"""
_TORCH = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import dream

torch.manual_seed(0)
BEFORE
data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
with dream.strategy(NAMED) as strategy:
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in DataLoader(data, batch_size=64, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
weights = [value.detach().numpy() for value in model.parameters()]
threads = torch.get_num_threads()
"""
_KERAS = """
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import dream

keras.utils.set_random_seed(0)
BEFORE
with dream.strategy(NAMED) as strategy:
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, activation="relu"),
                              keras.layers.Dense(10)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9),
                  keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(images / 16, labels, batch_size=64, epochs=1, verbose=0)
weights = model.get_weights()
threads = int(os.environ.get("TF_NUM_INTRAOP_THREADS", 0))
"""
_END = """
place = strategy.topology
told = {"weights": [float(x) for value in weights for x in value.ravel()], "rank": place.rank,
        "local": place.local_rank, "node": place.node_rank, "hosts": len(place.hosts),
        "threads": [threads, os.environ.get("OMP_NUM_THREADS")]}
with open(os.path.join(sys.argv[1], f"{place.world_size}-{place.rank}.json"), "w") as file:
    json.dump(told, file)
"""
SCRIPTS = {"torch": _DATA + _TORCH + _END, "keras": _DATA + _KERAS + _END}
"""One epoch, the last batch uneven. Each rank writes its weights and place into the folder that is
its only argument."""

TWO_HOSTS = [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1)]
"""rank, local rank and host of two hosts of two ranks."""


def script(framework: str, folder: Path, named: str = "", before: str = "") -> Path:
    """Write it. named: the strategy and options that it names, as Python; before: what comes
    before the block."""
    path = folder / f"digits_{framework}.py"
    path.write_text(SCRIPTS[framework].replace("NAMED", named).replace("BEFORE", before))
    return path


def start(script: Path, engine: Sequence[str], environ: Mapping[str, str] = {}) -> None:
    """Run a job of an engine's command to its end, which is a good one."""
    ran = subprocess.run(
        [*engine, str(script), str(script.parent)],
        env={**os.environ, **environ}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]


def alone(framework: str, folder: Path) -> Told:
    """What one device makes of it."""
    start(script(framework, folder, '"single"'), [sys.executable])
    return told(folder, 1)[0]


def told(folder: Path, ranks: int) -> list[Told]:
    """What the ranks of a job wrote; it is read once."""
    files = [folder / f"{ranks}-{rank}.json" for rank in range(ranks)]
    said: list[Told] = [json.loads(file.read_text()) for file in files]
    for file in files:
        file.unlink()
    return said


def check(said: Sequence[Told], one: Told, places: Sequence[tuple[int, int, int]]) -> None:
    """Hold a job's ranks to one device's weights, to one another's, and to their places."""
    assert [(rank["rank"], rank["local"], rank["node"]) for rank in said] == [*places]
    for rank in said:
        assert rank["weights"] == said[0]["weights"]
    np.testing.assert_allclose(said[0]["weights"], one["weights"], rtol=0, atol=1e-6)
