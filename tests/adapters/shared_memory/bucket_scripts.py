"""Loops of strangers that touch gradients, whose buckets lie in memory of all ranks or do not."""

from __future__ import annotations

import copy
import io
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

import dream
from dream.adapters.shared_memory import _buckets

Batch = tuple[torch.Tensor, torch.Tensor]
Loop = Callable[["Net", Optimizer, Iterator[Batch], Any], object]
"""Given the strategy too, None for the plain script. What it returns is the same anywhere."""
NO_LIMIT = 1 << 60


class Net(nn.Module):
    """Buckets of 0.1 MB hold a matrix each. Heads may be used by turns."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(90, 300), nn.Linear(300, 101)
        self.heads = nn.ModuleList(nn.Linear(101, 333) for _ in range(2))
        self.turn = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.second(torch.tanh(self.first(x))))
        result: torch.Tensor = self.heads[self.turn % 2](hidden)
        return result


def update(model: nn.Module, optimizer: Optimizer, batch: Batch, *, none: bool = True) -> None:
    optimizer.zero_grad(set_to_none=none)
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()


def plain(model: Net, optimizer: Optimizer, batches: Iterator[Batch], _: Any) -> None:
    for batch in batches:
        update(model, optimizer, batch)


def zeroed(model: Net, optimizer: Optimizer, batches: Iterator[Batch], _: Any) -> None:
    for batch in batches:
        update(model, optimizer, batch, none=False)


def summed(model: Net, optimizer: Optimizer, batches: Iterator[Batch], _: Any) -> None:
    """Accumulated by hand."""
    for number, (x, y) in enumerate(batches):
        (F.cross_entropy(model(x), y) / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def by_turns(model: Net, optimizer: Optimizer, batches: Iterator[Batch], _: Any) -> list[bool]:
    without = []
    for batch in batches:
        update(model, optimizer, batch)
        without.append(model.heads[0].weight.grad is None)
        model.turn += 1
    return without


def clipped(model: Net, optimizer: Optimizer, batches: Iterator[Batch], _: Any) -> list[float]:
    norms = []
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.05)))
        optimizer.step()
    return norms


def edited(model: Net, optimizer: Optimizer, batches: Iterator[Batch], _: Any) -> torch.Tensor:
    """Gradients scaled in place, put in another tensor, kept as arrays, and read later."""
    arrays, kept = [], []
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        model.first.weight.grad.mul_(0.5)  # type: ignore[union-attr]
        model.second.weight.grad = model.second.weight.grad.clone() * 2  # type: ignore[union-attr]
        arrays.append(model.first.weight.grad.numpy())  # type: ignore[union-attr]
        kept.append(torch.from_numpy(arrays[-1].copy()))
        optimizer.step()
    assert all(array.size and array.max() < 1e9 for array in arrays)  # they are still there
    return torch.stack(kept)


def frozen(model: Net, optimizer: Optimizer, batches: Iterator[Batch], _: Any) -> None:
    for number, batch in enumerate(batches):
        if number in (3, 6):
            model.second.requires_grad_(number == 6)
            optimizer.zero_grad()
        update(model, optimizer, batch)


def copied(model: Net, optimizer: Optimizer, batches: Iterator[Batch], strategy: Any) -> list[Any]:
    """Copies and files made between backward and step see what is there, and keep it."""
    found: list[Any] = []
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        file = io.BytesIO()
        torch.save([p.grad for p in model.parameters()], file)
        twin = copy.deepcopy(model)
        found += [file, [copy.deepcopy(p).detach() for p in twin.parameters()]]
        if strategy is not None and len(found) == 8:
            folder = strategy.communicator.broadcast_object(tempfile.mkdtemp())
            strategy.save(Path(folder), step=4, model=model, optimizer=optimizer)
        optimizer.step()
    for place, file in enumerate(found):
        if isinstance(file, io.BytesIO):
            file.seek(0)
            found[place] = torch.load(file)
    return found


def compiled(model: Net, optimizer: Optimizer, batches: Iterator[Batch], _: Any) -> None:
    model.compile(backend="eager")
    plain(model, optimizer, batches, None)


LOOPS: dict[str, tuple[Loop, dict[str, Any]]] = {
    "plain": (plain, {}),
    "zeroed": (zeroed, {}),
    "summed": (summed, {}),
    "accumulate": (plain, {"accumulate": 2}),
    "by turns": (by_turns, {}),
    "find_unused": (by_turns, {"find_unused": True}),
    "static_graph": (plain, {"static_graph": True}),
    "no views": (clipped, {"bucket_view": False}),
    "clipped": (clipped, {}),
    "edited": (edited, {}),
    "frozen": (frozen, {}),
    "copied": (copied, {}),
    "compiled": (compiled, {}),
}


def trained(name: str, *, dreams: bool, moves: bool) -> tuple[list[Any], bool]:
    """What a loop ends with, and an epoch after the block; and whether a bucket's gradient lies in
    memory of all ranks then. moves: whether buckets may."""
    loop, options = LOOPS[name]
    _buckets._LITTLE = 64 * 1024 if moves else NO_LIMIT
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(43, 90), torch.randint(333, (43,)))
    more = {"reduction": "shared_memory", "bucket_mb": 0.1} | options
    strategy = dream.strategy("mirrored", **more) if dreams else None
    if strategy is not None:
        strategy.__enter__()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    batches = DataLoader(data, batch_size=6)
    found = loop(model, optimizer, iter(batches), strategy)
    if strategy is not None:
        strategy.__exit__(None, None, None)
    for batch in batches:
        update(model, optimizer, batch)
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    lies = inside(model.first.weight.grad)
    return [found, gradients, list(model.state_dict().values())], lies


def inside(gradient: torch.Tensor | None) -> bool:
    """Whether it lies in memory of that kind."""
    assert gradient is not None
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(edge, 16) for edge in line.split()[0].split("-"))
        if begin <= gradient.data_ptr() < end:
            return "dream-shared" in line
    return False


def compared(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Of each loop: how far it is from one of copied buckets and from the plain script, and whether
    gradients lie in memory of all ranks with and without."""
    found = {}
    for name in names:
        there, lies = trained(name, dreams=True, moves=True)
        copied, stays = trained(name, dreams=True, moves=False)
        alone, _ = trained(name, dreams=False, moves=False)
        found[name] = {
            "copied": apart(there, copied), "alone": apart(there, alone), "lies": [lies, stays],
            "bits": sum(float(x.double().sum()) for x in there[2]),
        }  # fmt: skip
    return found


def apart(one: Any, other: Any) -> float:
    """The largest difference; infinity where they are not even alike."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return float((one - other).abs().max()) if one.shape == other.shape else float("inf")
    if isinstance(one, (list, tuple)) and len(one) == len(other):
        return max((apart(a, b) for a, b in zip(one, other, strict=True)), default=0.0)
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other)
    return 0.0 if type(one) is type(other) and one == other else float("inf")
