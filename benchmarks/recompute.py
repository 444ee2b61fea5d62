"""What recomputation saves, and what it costs: a chain of blocks in PyTorch, from 16 to 256 deep.

    python benchmarks/recompute.py [--width 256] [--rows 64] [--rounds 5] [--only auto]

For each depth: the largest number of bytes that a training step holds at a time beside parameters
and gradients, and its median time, with everything kept and under recompute="sqrt", in turns. Then
the exponents that fit bytes = a * depth ** b; a small transformer and LSTMs under recompute="auto",
against all kept and recompute=True; and what recompute_keras.py says of TensorFlow.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import dream

DEPTHS = (16, 32, 64, 128, 256)
WAYS: dict[str, Any] = {"kept": False, "sqrt": "sqrt"}
BUDGETS = (0.75, 0.5, 0.25)


class Block(nn.Module):
    """Keeps three tensors of its input's size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(torch.sigmoid(self.inner(x)))


class Lstms(nn.Module):
    """One after the other, each beside what goes around it."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)[0]
        return x


def transformer() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 8, enable_nested_tensor=False), torch.randn(8, 128, 128)


def lstms() -> tuple[nn.Module, torch.Tensor]:
    return Lstms(128, 8), torch.randn(16, 64, 128)


def chain(depth: int, width: int, rows: int) -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*(Block(width) for _ in range(depth))), torch.randn(rows, width)


Make = Callable[[], tuple[nn.Module, torch.Tensor]]


class Live(TorchDispatchMode):
    """Bytes of tensors that operations made and that are still there. most: at any time."""

    def __init__(self, own: list[torch.Tensor]) -> None:
        super().__init__()
        self._own = {t.untyped_storage()._cdata for t in own}
        self._sizes: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()
                if storage._cdata not in self._own:
                    self._sizes[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        gone = [key for key, (ref, _) in self._sizes.items() if ref.expired()]
        for key in gone:
            del self._sizes[key]
        self.most = max(self.most, sum(size for _, size in self._sizes.values()))
        return result


class Trained:
    """A model under one way, and its steps."""

    def __init__(self, make: Make, how: Any, budget: float | None = None) -> None:
        options = {} if budget is None else {"memory_budget": budget}
        with dream.strategy("single", framework="torch", recompute=how, **options):
            torch.manual_seed(0)
            self._model, self._x = make()
            for _ in range(2):  # distributes it, and has measured it
                self.step()

    def step(self) -> None:
        self._model.zero_grad(set_to_none=False)
        self._model(self._x).square().mean().backward()

    def most(self) -> int:
        own = [t for p in self._model.parameters() for t in (p, p.grad) if t is not None]
        with Live(own) as live:
            self.step()
        return live.most

    def seconds(self) -> float:
        begin = time.perf_counter()
        self.step()
        return time.perf_counter() - begin


def exponent(depths: tuple[int, ...], values: list[int]) -> float:
    """The slope of a line through the logarithms."""
    x, y = [math.log(d) for d in depths], [math.log(v) for v in values]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    over = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return over / sum((a - mean_x) ** 2 for a in x)


def in_turns(ways: Mapping[Any, Trained], rounds: int) -> dict[Any, float]:
    """The median time of each."""
    times: dict[Any, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, model in ways.items():
            times[way].append(model.seconds())
    return {way: median(found) for way, found in times.items()}


def chosen(name: str, make: Make, rounds: int) -> None:
    """recompute="auto" against none and all."""
    trained = {"none": Trained(make, False)}
    for budget in BUDGETS:
        trained[f"auto, {budget}"] = Trained(make, "auto", budget)
    trained["all"] = Trained(make, True)
    times = in_turns(trained, rounds)
    most = {way: model.most() for way, model in trained.items()}
    for way in trained:
        print(
            f"{name:>12} {way:>10} {most[way] / 1024:>8.0f} KiB {most[way] / most['none']:>6.2f}"
            f"  time {times[way] / times['none']:.2f}, of all {times[way] / times['all']:.2f}"
        )


def depths(width: int, rows: int, rounds: int) -> None:
    """Chains that are ever deeper."""
    most: dict[str, list[int]] = {way: [] for way in WAYS}
    print(f"{'depth':>6} {'kept KiB':>10} {'sqrt KiB':>10} {'bytes':>7} {'time':>7}")
    for depth in DEPTHS:
        make = partial(chain, depth, width, rows)
        trained = {way: Trained(make, how) for way, how in WAYS.items()}
        times = in_turns(trained, rounds)
        for way, model in trained.items():
            most[way].append(model.most())
        kept, cut = (most[way][-1] for way in WAYS)
        longer = times["sqrt"] / times["kept"]
        print(
            f"{depth:>6} {kept / 1024:>10.0f} {cut / 1024:>10.0f} {cut / kept:>7.3f} {longer:>7.2f}"
        )
    for way, values in most.items():
        print(f"{way}: bytes grow as depth ** {exponent(DEPTHS, values):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("depths", "auto", "keras"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.only in (None, "depths"):
        depths(given.width, given.rows, given.rounds)
    if given.only in (None, "auto"):
        chosen("transformer", transformer, given.rounds)
        chosen("LSTMs", lstms, given.rounds)
    if given.only in (None, "keras") and find_spec("tensorflow"):
        print("\nKeras on TensorFlow, in tensors of the size of a block's input:", flush=True)
        table = Path(__file__).with_name("recompute_keras.py")
        subprocess.run([sys.executable, str(table)], check=True)


if __name__ == "__main__":
    main()
