"""Train a little by the framework of the first argument and the reduction of the second, and print
the weights on rank 0."""

from __future__ import annotations

import os
import sys

import dream

FRAMEWORK, REDUCTION = sys.argv[1:]
alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
name, options = ("single", {}) if alone else ("multi_worker_mirrored", {"reduction": REDUCTION})

if FRAMEWORK == "torch":
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    with dream.strategy(name, **options) as strategy:
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        data = TensorDataset(torch.randn(20, 4), torch.randn(20, 1))
        for x, y in DataLoader(data, batch_size=8):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    weights = model.weight.detach().ravel().tolist()
else:
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    with dream.strategy(name, **options) as strategy:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
        model.fit(x, x[:, :1], batch_size=8, verbose=0)
    weights = model.get_weights()[0].ravel().tolist()
if strategy.topology.rank == 0:
    print("weights", *weights)
