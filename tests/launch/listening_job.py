"""A rank that trains a step in a block, says so in FILE.RANK, and stays until FILE.go is there:
FILE FRAMEWORK NAME [option=value ...]. Or, as `collectives`, stands in each of the reductions."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import dream
from dream import cluster

INPUTS = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
TARGETS = INPUTS.sum(1, keepdims=True)
MINUTES = 5 * 60.0


def torch(**block: Any) -> None:
    from torch import nn, optim, set_num_threads, tensor
    from torch.utils.data import DataLoader, TensorDataset

    set_num_threads(1)
    with dream.strategy(framework="torch", **block) as strategy:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = optim.SGD(model.parameters(), 0.1)
        data = DataLoader(TensorDataset(tensor(INPUTS), tensor(TARGETS)), batch_size=4)
        model, optimizer, batches = strategy.prepare(model, optimizer, data)
        step = strategy.train_step(model, nn.functional.mse_loss, optimizer)
        for batch in batches:
            float(step(*batch))
        _stay()


def tensorflow(**block: Any) -> None:
    import keras

    with dream.strategy(framework="tensorflow", **block):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.fit(INPUTS, TARGETS, batch_size=4, verbose=0)
        _stay()


def collectives(framework: str, *reductions: str) -> None:
    """One after the other, in one process: what one listens on stays open under the next."""
    for reduction in reductions:
        c = dream.communicator(reduction, framework=framework)
        c.all_reduce(np.ones(3, np.float32))
    _stay()


def _stay() -> None:
    file = sys.argv[1]
    Path(f"{file}.{cluster.detect().rank}").touch()
    limit = time.monotonic() + MINUTES
    while not Path(f"{file}.go").exists() and time.monotonic() < limit:
        time.sleep(0.05)


def main() -> None:
    _, _, framework, name, *options = sys.argv
    if name == "collectives":
        collectives(framework, *options)
        return
    given = dict(option.split("=") for option in options)
    numbers = {key: int(value) if value.isdigit() else value for key, value in given.items()}
    {"torch": torch, "tensorflow": tensorflow}[framework](name=name, **numbers)


if __name__ == "__main__":
    main()
