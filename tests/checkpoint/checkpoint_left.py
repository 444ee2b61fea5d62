"""Loops that end with another loader, or by a break, saved where an epoch ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import numpy as np

import dream

EPOCHS = 4
Loops = dict[str, Callable[[Any, Any], Iterable[tuple[Any, Any]]]]
"""By name, an epoch of two loaders."""


def broken(long: Any, _: Any) -> Iterator[tuple[Any, Any]]:
    for i, batch in enumerate(long):
        if i == 2:
            break
        yield batch, batch


LOOPS: Loops = {
    "equal": lambda long, _: zip(long, long, strict=False),
    "other first": lambda long, other: zip(other, long, strict=False),
    "whole": lambda long, _: ((batch, batch) for batch in long),
    "break": broken,
}
KEPT = ("equal", "other first", "whole")
"""Those that end where the loader does. The other ends in its midst."""
IN_TENSORFLOW = ("other first", "break")
"""Who tells the loaders of the others apart is what torch has."""


class _Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def left(folder: str, framework: str, names: Iterable[str]) -> dict[str, tuple[float, int]]:
    """By loop: how far from an undisturbed training one ends that went on after its second epoch,
    and how often it was said that a loop was left."""
    train = {"torch": _torch, "tensorflow": _tensorflow}[framework]
    said, found = _Said(), {}
    logging.getLogger("dream").addHandler(said)
    for name in names:
        loop = LOOPS[name]
        place = f"{folder}/{name.replace(' ', '-')}"
        whole = train(loop, f"{place}-whole", EPOCHS)
        said.lines.clear()
        train(loop, place, 2)
        lines = sum("was left before its end" in line for line in said.lines)
        gap = np.abs(train(loop, place, EPOCHS) - whole).max()
        found[name] = float(gap), lines
    return found


def _torch(loop: Any, folder: str, until: int) -> Any:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(5)
    x, other = torch.randn(24, 4), torch.randn(24, 4)
    with dream.strategy("single") as strategy:
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        long = DataLoader(TensorDataset(x), batch_size=6, shuffle=True)
        short = DataLoader(TensorDataset(other), batch_size=6)
        kept = {"model": model, "optimizer": optimizer, "data": long}
        at = strategy.load(folder, **kept)
        for epoch in range(at.step if at else 0, until):
            for (a,), (b,) in loop(long, short):
                optimizer.zero_grad()
                model(a * b).square().mean().backward()
                optimizer.step()
            strategy.save(folder, step=epoch + 1, **kept).wait()
        return cast(Any, model.weight).detach().numpy().copy()


def lasting(folder: str) -> dict[str, float]:
    """The same with workers that stay from pass to pass."""
    return {
        where: float(np.abs(_train_on(f"{folder}/{where}", None, where, 1) - whole).max())
        for whole in [_train_on(f"{folder}/whole", None, "", 1)]
        for where in ("ended", "asked", "handed")
    }


def begun(folder: str, seed: int | None) -> dict[str, float]:
    """By where it was saved: how far from an undisturbed training one ends that went on."""
    return {
        where: float(np.abs(_train_on(f"{folder}/{where}", seed, where) - whole).max())
        for whole in [_train_on(f"{folder}/whole", seed, "")]
        for where in ("asked", "handed")
    }


def _train_on(folder: str, seed: int | None, where: str, workers: int = 0) -> Any:
    """Train with dropout. where: what was last done of a pass when it is saved and left."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    def trained(*, left: bool) -> Any:
        torch.manual_seed(5)
        data = TensorDataset(torch.randn(24, 8))
        with dream.strategy("single", seed=seed) as strategy:
            model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
            loader = DataLoader(
                data, batch_size=6, shuffle=True, num_workers=workers,
                persistent_workers=workers > 0,
            )  # fmt: skip
            kept = {"model": model, "optimizer": optimizer, "data": loader}
            at = strategy.load(folder, **kept)
            for epoch in range(at.epoch if at else 0, 4):
                batches = iter(loader)
                if left and (where, epoch) == ("asked", 2):
                    return strategy.save(folder, step=epoch, **kept).wait()
                for (x,) in batches:
                    optimizer.zero_grad()
                    model(x).square().mean().backward()
                    optimizer.step()
                    if left and (where, epoch) == ("handed", 2):
                        return strategy.save(folder, step=epoch, **kept).wait()
                if left and (where, epoch) == ("ended", 1):
                    return strategy.save(folder, step=epoch, **kept).wait()
            return cast(Any, model[1].weight).detach().numpy().copy()

    if where:
        trained(left=True)
    return trained(left=False)


def _tensorflow(loop: Any, folder: str, until: int) -> Any:
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(5)
    x, other = np.random.randn(2, 24, 4).astype("float32")
    with dream.strategy("single") as strategy:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.05), "mse")
        data = tf.data.Dataset.from_tensor_slices(x).shuffle(24, seed=3).batch(6)
        long = strategy.prepare(data)
        short = strategy.prepare(tf.data.Dataset.from_tensor_slices(other).batch(6))
        kept = {"model": model, "optimizer": model.optimizer, "data": long}
        at = strategy.load(folder, **kept)
        for epoch in range(at.step if at else 0, until):
            for a, b in loop(long, short):
                model.train_on_batch(a * b, tf.reduce_sum(a, 1))
            strategy.save(folder, step=epoch + 1, **kept).wait()
        return model.get_weights()[0]
