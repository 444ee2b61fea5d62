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
    shapes = [(8, 16), (16,), (16, 8), (8,), (8, 4), (4,)]
    return [rng.normal(size=shape).astype("float32") * 0.3 for shape in shapes]


def write(api: str, word: str, options: dict[str, Any], folder: str) -> list[Any]:
    """Train and save, with each optimizer."""
    return _each(api, word, options, [("", folder)])[0]


def read(
    api: str, word: str, options: dict[str, Any], folders: Sequence[str]
) -> list[list[list[Any]]]:
    """Go on from each folder's, with each optimizer."""
    return _each(api, word, options, [(folder, "") for folder in folders])


def _each(
    api: str, word: str, options: dict[str, Any], trainings: Sequence[tuple[str, str]],
    epochs: int = EPOCHS,
) -> list[list[list[Any]]]:  # fmt: skip
    """Train by each optimizer from and to these folders; one model is set again and again, since
    Keras is slow to compile one. Replicas that step alone are of one optimizer a block."""
    train = _torch if api == "torch" else _keras
    found: list[list[list[Any]]] = [[] for _ in trainings]
    for kind in KINDS:
        parts = [trainings] if word != "local_sgd" else [[each] for each in trainings]
        results: list[list[Any]] = []
        for part in parts:
            with dream.strategy(word, **options) as strategy:
                results += train(strategy, kind, part, epochs)
        for own, result in zip(found, results, strict=True):
            own.append(result)
    return found


def whole(api: str, word: str, options: dict[str, Any]) -> list[list[Any]]:
    """What it learns in one go."""
    return _each(api, word, options, [("", "")], epochs=2 * EPOCHS)[0]


def one(api: str, word: str, options: dict[str, Any], before: str, after: str) -> list[Any]:
    """Train by AdamW alone: servers end with a block."""
    del api
    with dream.strategy(word, **options) as strategy:
        (found,) = _torch(strategy, "AdamW", [(before, after)], EPOCHS)
        return found


def _torch(
    strategy: Any, kind: str, trainings: Sequence[tuple[str, str]], epochs: int
) -> list[list[Any]]:
    import torch

    model = _net()
    optimizer = _optimizer(kind, model)
    x, y = (torch.from_numpy(a) for a in data())
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=BATCH)
    model, optimizer, batches = strategy.prepare(model, optimizer, batches)
    step = strategy.train_step(model, torch.nn.functional.cross_entropy, optimizer)
    found = []
    for before, after in trainings:
        if before:
            strategy.load(f"{before}/{kind}", model=model, optimizer=optimizer)
        for _ in range(epochs):
            for batch in batches:
                step(*batch)
        if after:
            strategy.save(f"{after}/{kind}", step=8, model=model, optimizer=optimizer)
        found.append([array.T for array in strategy.full_state(model).values()])
    return found


def plain(*_: Any) -> tuple[list[list[Any]], list[float]]:
    """What one device learns in torch without dream, in one go; and how far from that it is where
    each batch is summed in 2, 3 or 4 parts."""
    whole, *parted = ([_plainly(kind, parts) for kind in KINDS] for parts in (1, 2, 3, 4))
    noise = [
        max(
            float(abs(a - b).max())
            for other in parted
            for a, b in zip(other[place], whole[place], strict=True)
        )
        for place in range(len(KINDS))
    ]
    return whole, noise


def _plainly(kind: str, parts: int) -> list[Any]:
    import torch

    x, y = (torch.from_numpy(a) for a in data())
    model = _net()
    optimizer = _optimizer(kind, model)
    for _ in range(2 * EPOCHS):
        for inputs, target in zip(x.split(BATCH), y.split(BATCH), strict=True):
            _step(model, optimizer, inputs, target, parts)
    return [p.detach().numpy().T for p in model.parameters()]


def _net() -> Any:
    from torch import from_numpy, nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.middle = nn.Linear(8, 16), nn.Linear(16, 8)
            self.out = nn.Linear(8, 4)
            arrays = (np.ascontiguousarray(array.T) for array in start())
            for own, array in zip(self.parameters(), arrays, strict=True):
                own.data.copy_(from_numpy(array))

        def forward(self, x: Any) -> Any:
            return self.out(self.middle(self.hidden(x).relu()).relu())

    return Net()


def _optimizer(kind: str, model: Any) -> Any:
    import torch

    if kind == "SGD":
        return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), 0.01, eps=1e-12, weight_decay=0.004)


def _step(model: Any, optimizer: Any, inputs: Any, target: Any, parts: int) -> None:
    from torch.nn.functional import cross_entropy

    optimizer.zero_grad()
    for x, y in zip(inputs.chunk(parts), target.chunk(parts), strict=True):
        (cross_entropy(model(x), y) * (len(y) / len(target))).backward()
    optimizer.step()


def _keras(
    strategy: Any, kind: str, trainings: Sequence[tuple[str, str]], epochs: int
) -> list[list[Any]]:
    import keras

    dense = keras.layers.Dense
    model = keras.Sequential([keras.Input((8,)), dense(16, "relu"), dense(8, "relu"), dense(4)])
    model.set_weights(start())
    optimizer: Any = keras.optimizers.SGD(0.05, momentum=0.9) if kind == "SGD" else (
        keras.optimizers.AdamW(0.01, epsilon=1e-12, weight_decay=0.004))  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    found = []
    for before, after in trainings:
        if before:
            strategy.load(f"{before}/{kind}", model=model, optimizer=optimizer)
        model.fit(*data(), batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)
        if after:
            strategy.save(f"{after}/{kind}", step=8, model=model, optimizer=optimizer)
        found.append([np.array(v) for v in model.weights])
    return found
