"""Loops of several loaders, and what they train with beside, left and gone on with."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

import dream
from dream.checkpoint import leaving, training

EPOCHS = 3
Batches = Iterator[tuple[Any, Any]]


def restarted(first: int, long: Any, short: Any) -> Batches:
    """The short one begins anew within a pass of the long one."""
    shorts = iter(short)
    for _ in range(first, EPOCHS):
        for batch in long:
            other = next(shorts, None)
            if other is None:
                shorts = iter(short)
                other = next(shorts)
            yield batch, other


def in_turn(first: int, long: Any, short: Any) -> Batches:
    """An epoch goes through one, then through the other."""
    for _ in range(first, EPOCHS):
        for batch in long:
            yield batch, batch
        for batch in short:
            yield batch, batch


def copied(first: int, long: Any, short: Any) -> Batches:
    """What a cycle repeats is no pass of the loader."""
    for _ in range(first, EPOCHS):
        yield from zip(long, itertools.cycle(short), strict=False)


LOOPS: dict[str, Callable[[int, Any, Any], Batches]] = {
    "restarted": restarted,
    "in turn": in_turn,
    "copied": copied,
}


def loops(folder: str, name: str, strategies: tuple[str, str]) -> dict[int, tuple[float, bool]]:
    """By the step that a training was asked to leave at: how far from an undisturbed one it ends
    that went on, and whether a loader was said to have ended within another's pass."""
    loop, found = LOOPS[name], {}
    whole = _train(f"{folder}/whole", loop, strategies[0], None)
    for step in range(2, 9):
        place = f"{folder}/{step}"
        with Said() as lines:
            assert _train(place, loop, strategies[0], step) is None
            gap = np.abs(_train(place, loop, strategies[1], None) - whole).max()
        told = any("ended within the pass of another" in line for line in lines)
        found[step] = float(gap), told
    return found


def _train(folder: str, loop: Any, word: str, leave: int | None) -> Any:
    """Return the weights; None where it has left. leave: at the end of which step."""
    torch.manual_seed(5)
    x, other = torch.randn(20, 4), torch.randn(11, 4)
    with Leaving(folder, leave), dream.strategy(word) as strategy:
        model = nn.Sequential(nn.Dropout(0.4), nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        long = DataLoader(TensorDataset(x), batch_size=5, shuffle=True)
        short = DataLoader(TensorDataset(other), batch_size=5, shuffle=True)
        data = {"long": long, "short": short}
        at = strategy.load(model=model, optimizer=optimizer, data=data)
        try:
            for (a,), (b,) in loop(at.epoch if at else 0, long, short):
                optimizer.zero_grad()
                (model(a).square().mean() + model(b).mean()).backward()
                optimizer.step()
        except SystemExit:
            return None
        return strategy.full_state(model)["1.weight"].copy()


def beside(folder: str) -> list[str]:
    """What is said of a training that is saved without its schedule, scaler, average and generator,
    and as it goes on in the midst of a pass."""
    with Said() as lines:
        for leave in 2, 4:
            _train_beside(folder, leave, kept=False)
    with Said() as kept:
        _train_beside(f"{folder}-kept", 2, kept=True)
    assert not any("trains on beside" in line for line in kept), kept
    return lines


class Noisy(TensorDataset):
    """Its samples are drawn by a generator that nothing else has."""

    def __init__(self, x: torch.Tensor, *, draws: bool) -> None:
        super().__init__(x)
        self.own = np.random.default_rng(0) if draws else None

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        (x,) = super().__getitem__(index)
        return (x if self.own is None else x * float(self.own.uniform(0.5, 1.5)),)


def _train_beside(folder: str, leave: int, *, kept: bool) -> None:
    torch.manual_seed(5)
    own = torch.Generator().manual_seed(3)
    with Leaving(folder, leave), dream.strategy("single") as strategy:
        model, unchanged = nn.Linear(4, 1), nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        schedule, average = StepLR(optimizer, 2), AveragedModel(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        loader = DataLoader(
            Noisy(torch.randn(20, 4), draws=not kept), 5, shuffle=True,
            generator=own if kept else None,
        )  # fmt: skip
        parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "data": loader}
        if kept:
            parts["model"] = {"model": model, "average": average}
            parts["scheduler"] = {"schedule": schedule, "scaler": scaler}
        strategy.load(**parts)
        try:
            for (x,) in itertools.chain(loader, loader):
                noise = 0 if kept else torch.randn(x.shape, generator=own)
                optimizer.zero_grad()
                with torch.no_grad():
                    x = unchanged(x)
                scaler.scale(model(x + noise).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()
                schedule.step()
                average.update_parameters(model)
        except SystemExit:
            pass


class Leaving:
    """Inside, a training is kept in a folder, and asked to leave at the end of a step."""

    def __init__(self, folder: str, step: int | None) -> None:
        self._folder, self._step = folder, step

    def __enter__(self) -> None:
        steps = itertools.count(1)
        asked: dict[str, int] = {}

        def came(*_: Any, ask: bool = False) -> leaving.Agreed:
            del ask
            asked["steps"] = next(steps)
            return leaving.Agreed(asked["steps"] == self._step, False)

        kept = {"DREAM_CHECKPOINT": self._folder, "DREAM_CHECKPOINT_SECONDS": "1000"}
        self._patches = [patch.dict(os.environ, kept), patch.object(leaving.StepEnds, "came", came)]
        self._patches.append(patch.object(training, "_taken", set()))
        for each in self._patches:
            each.start()

    def __exit__(self, *_: object) -> None:
        for each in self._patches:
            each.stop()


class Said:
    """Collects the lines that dream says inside."""

    def __enter__(self) -> list[str]:
        lines: list[str] = []
        self._handler = logging.Handler()
        self._handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("dream").addHandler(self._handler)
        return lines

    def __exit__(self, *_: object) -> None:
        logging.getLogger("dream").removeHandler(self._handler)
