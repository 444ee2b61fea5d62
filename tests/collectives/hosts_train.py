"""A rank that trains on one of two hosts, and what one device learns: FRAMEWORK FILE STRATEGY."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import dream
from dream import cluster

draw = np.random.default_rng(0)
INPUTS = draw.normal(size=(101, 8)).astype(np.float32)
TARGETS = INPUTS.sum(1, keepdims=True)
BATCH, EPOCHS = 16, 3
"""101 is no multiple of 16: the last batch of an epoch has 5."""


def torch(**block: Any) -> list[np.ndarray]:
    from torch import manual_seed, nn, optim, set_num_threads, tensor
    from torch.utils.data import DataLoader, TensorDataset

    set_num_threads(1)
    manual_seed(0)
    with dream.strategy(framework="torch", **block):
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = optim.SGD(model.parameters(), 0.05, momentum=0.9)
        data = TensorDataset(tensor(INPUTS), tensor(TARGETS))
        for _ in range(EPOCHS):
            for x, y in DataLoader(data, batch_size=BATCH, shuffle=True):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
    return [parameter.detach().numpy() for parameter in model.parameters()]


def tensorflow(**block: Any) -> list[np.ndarray]:
    import keras

    with dream.strategy(framework="tensorflow", **block):
        keras.utils.set_random_seed(0)
        layers = keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)
        model = keras.Sequential([keras.Input((8,)), *layers])
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
        model.fit(INPUTS, TARGETS, batch_size=BATCH, epochs=EPOCHS, verbose=0)
    return list(model.get_weights())


def main() -> None:
    framework, file, strategy = sys.argv[1:]
    block = {"name": strategy}
    if strategy != "single":
        block["reduction"] = "hierarchical"
    learned = {"torch": torch, "tensorflow": tensorflow}[framework](**block)
    place = cluster.detect()
    np.savez(f"{file}.{place.rank}", *learned)


if __name__ == "__main__":
    main()
