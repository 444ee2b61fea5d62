"""Short trainings in torch and in Keras: the same layers, start and data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import dream

SAMPLES, BATCH, EPOCHS = 61, 16, 2
KINDS = ("SGD", "AdamW")


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(2)
    y = rng.integers(0, 3, SAMPLES)
    return (rng.normal(size=(SAMPLES, 8)) + y[:, None]).astype("float32"), y


def start() -> list[Any]:
    rng = np.random.default_rng(5)
    shapes = [(8, 16), (16,), (16, 4), (4,)]
    return [rng.normal(size=shape).astype("float32") * 0.3 for shape in shapes]


def write(api: str, word: str, options: dict[str, Any], folder: str) -> list[Any]:
    """Train and save, with each optimizer."""
    with dream.strategy(word, **options) as strategy:
        return [_trained(api, strategy, kind, None, f"{folder}/{kind}") for kind in KINDS]


def read(
    api: str, word: str, options: dict[str, Any], folders: Sequence[str]
) -> list[list[list[Any]]]:
    """Go on from each folder's, with each optimizer."""
    with dream.strategy(word, **options) as strategy:
        return [
            [_trained(api, strategy, kind, f"{folder}/{kind}", None) for kind in KINDS]
            for folder in folders
        ]


def _trained(
    api: str, strategy: Any, kind: str, before: str | None, after: str | None
) -> list[Any]:
    train = _torch if api == "torch" else _keras
    return train(strategy, kind, before, after)


def _torch(strategy: Any, kind: str, before: str | None, after: str | None) -> list[Any]:
    import torch

    model = _net()
    optimizer = _optimizer(kind, model)
    if before is not None:
        strategy.load(before, model=model, optimizer=optimizer)
    x, y = (torch.from_numpy(a) for a in data())
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=BATCH)
    for _ in range(EPOCHS):
        for inputs, target in batches:
            _step(model, optimizer, inputs, target)
    if after is not None:
        strategy.save(after, step=8, model=model, optimizer=optimizer)
    return [array.T for array in strategy.full_state(model).values()]


def plain(*_: Any) -> list[list[Any]]:
    """What one device learns in torch without dream, in one go."""
    import torch

    x, y = (torch.from_numpy(a) for a in data())
    found = []
    for kind in KINDS:
        model = _net()
        optimizer = _optimizer(kind, model)
        for _ in range(2 * EPOCHS):
            for inputs, target in zip(x.split(BATCH), y.split(BATCH), strict=True):
                _step(model, optimizer, inputs, target)
        found.append([p.detach().numpy().T for p in model.parameters()])
    return found


def _net() -> Any:
    from torch import from_numpy, nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.out = nn.Linear(8, 16), nn.Linear(16, 4)
            arrays = (np.ascontiguousarray(array.T) for array in start())
            for own, array in zip(self.parameters(), arrays, strict=True):
                own.data.copy_(from_numpy(array))

        def forward(self, x: Any) -> Any:
            return self.out(nn.functional.relu(self.hidden(x)))

    return Net()


def _optimizer(kind: str, model: Any) -> Any:
    import torch

    if kind == "SGD":
        return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), 0.01, eps=1e-12, weight_decay=0.004)


def _step(model: Any, optimizer: Any, inputs: Any, target: Any) -> None:
    from torch.nn.functional import cross_entropy

    optimizer.zero_grad()
    cross_entropy(model(inputs), target).backward()
    optimizer.step()


def _keras(strategy: Any, kind: str, before: str | None, after: str | None) -> list[Any]:
    import keras

    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(4)]
    )
    if before is None:
        model.set_weights(start())
    optimizer: Any = keras.optimizers.SGD(0.05, momentum=0.9) if kind == "SGD" else (
        keras.optimizers.AdamW(0.01, epsilon=1e-12, weight_decay=0.004))  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    if before is not None:
        strategy.load(before, model=model, optimizer=optimizer)
    model.fit(*data(), batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0)
    if after is not None:
        strategy.save(after, step=8, model=model, optimizer=optimizer)
    return [np.array(v) for v in model.weights]
