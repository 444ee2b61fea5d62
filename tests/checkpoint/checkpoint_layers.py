"""A convolutional net, and a recurrent one, in torch and in Keras on torch: in one process."""

from __future__ import annotations

import os
from typing import Any

import keras
import numpy as np
import torch
from keras import layers
from torch import nn

import dream


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.rnn = nn.LSTM(6, 5, batch_first=True)
        self.norm = nn.LayerNorm(5)
        self.out = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.out(self.norm(self.rnn(self.table(x))[0][:, -1]))


def convolution() -> tuple[Any, Any, Any]:
    theirs = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=0.01), nn.ReLU(), nn.Flatten(),
        nn.Linear(4 * 4 * 5, 3),
    )  # fmt: skip
    ours = keras.Sequential(
        [keras.Input((6, 7, 3)), layers.Conv2D(4, 3),
         layers.BatchNormalization(epsilon=1e-5), layers.ReLU(), layers.Flatten(), layers.Dense(3)]
    )  # fmt: skip
    x = np.random.default_rng(1).normal(size=(5, 6, 7, 3)).astype("float32")
    return theirs, ours, (torch.from_numpy(x.transpose(0, 3, 1, 2).copy()), x)


def recurrence() -> tuple[Any, Any, Any]:
    ours = keras.Sequential(
        [keras.Input((7,), dtype="int32"), layers.Embedding(11, 6), layers.LSTM(5),
         layers.LayerNormalization(epsilon=1e-5), layers.Dense(3)]
    )  # fmt: skip
    x = np.random.default_rng(1).integers(0, 11, (5, 7))
    return Recurrent(), ours, (torch.from_numpy(x), x)


def ported(folder: str) -> dict[str, list[float]]:
    """By net how far outputs are apart: of torch's in Keras, and of Keras's back in torch; and the
    first differences of Adam's states."""
    found = {}
    keras.utils.set_random_seed(3)
    with dream.strategy("single", framework="torch") as strategy:
        for make in (convolution, recurrence):
            place = os.path.join(folder, make.__name__)  # noqa: PTH118
            theirs, ours, (x, own_x) = make()
            back, _, _ = make()
            adam, again = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (theirs, back))
            own = keras.optimizers.Adam(0.1)
            for _ in range(2):
                theirs(x).square().mean().backward()
                adam.step()
            strategy.save(place, step=2, model=theirs, optimizer=adam)
            strategy.load(place, model=ours, optimizer=own)
            strategy.save(f"{place}-back", step=2, model=ours, optimizer=own)
            strategy.load(f"{place}-back", model=back, optimizer=again)
            for each in (theirs, back):
                each.eval()
            expected = theirs(x).detach().numpy()
            states = [
                float((a.state[p][slot] - b.state[q][slot]).abs().max())
                for a, b in [(adam, again)]
                for (name, p), (_, q) in zip(
                    theirs.named_parameters(), back.named_parameters(), strict=True
                )
                if "bias_hh" not in name
                for slot in ("exp_avg", "exp_avg_sq", "step")
            ]
            found[make.__name__] = [
                float(np.abs(np.array(ours(own_x, training=False).detach()) - expected).max()),
                float(np.abs(back(x).detach().numpy() - expected).max()),
                max(states),
                abs(float(own.learning_rate) - 0.01) + abs(int(own.iterations) - 2),
            ]
    return found
