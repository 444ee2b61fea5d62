"""Models that came to be without a constructor, trained alone and in the block."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream


def _loaded(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    read: nn.Module = torch.load(file, weights_only=False)
    return read


COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deep": copy.deepcopy,
    "pickled": lambda model: pickle.loads(pickle.dumps(model)),
    "loaded": _loaded,
}
BLOCKS: dict[str, dict[str, Any]] = {
    "mirrored": {}, "horovod": {}, "sharded": {}, "zero 1": {"zero": 1}, "local_sgd": {"every": 1},
}  # fmt: skip


def trained(make: Callable[[nn.Module], nn.Module], *, first: bool) -> dict[str, torch.Tensor]:
    """first: whether the model that is copied is trained before."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Dropout(0.3), nn.Linear(7, 3))
    rows = TensorDataset(torch.randn(23, 5), torch.arange(23) % 3)
    batches = DataLoader(rows, 6, shuffle=True)
    if first:
        _epoch(model, batches)
    copied = make(model)
    _epoch(copied, batches)
    whole = {n: x.full_tensor() if hasattr(x, "full_tensor") else x
             for n, x in copied.state_dict().items()}  # fmt: skip
    return {name: value.detach().clone() for name, value in whole.items()}


def _epoch(model: nn.Module, batches: Any, given: Any = None) -> None:
    optimizer = given or torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def trained_on() -> dict[str, torch.Tensor]:
    """A model and its optimizer, copied together in the midst of training."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    batches = DataLoader(TensorDataset(torch.randn(23, 5), torch.arange(23) % 3), 6, shuffle=True)
    _epoch(model, batches, optimizer)
    model, optimizer = copy.deepcopy((model, optimizer))
    _epoch(model, batches, optimizer)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def copied_together(name: str) -> Any:
    torch.set_num_threads(1)
    right = trained_on()
    with _block(name):
        try:
            ours = trained_on()
        except dream.ConfigurationError as error:
            return str(error)
    return max(float((ours[n] - right[n]).abs().max()) for n in right)


def gaps(name: str) -> dict[str, float]:
    """The largest difference from one device, by copy."""
    torch.set_num_threads(1)
    found = {}
    for how, make in COPIES.items():
        for first in (False, True):
            right = trained(make, first=first)
            with _block(name):
                ours = trained(make, first=first)
            apart = max(float((ours[n] - right[n]).abs().max()) for n in right)
            found[f"{how}, {'trained' if first else 'fresh'}"] = apart
    return found


def _block(name: str) -> contextlib.AbstractContextManager[Any]:
    strategy = "sharded" if name.startswith("zero") else name
    return dream.strategy(strategy, framework="torch", **BLOCKS[name])


def alone() -> list[float]:
    """A copy without an optimizer of the block's is an ordinary model, that rank 0 may train."""
    with dream.strategy("mirrored", framework="torch") as made:
        model = nn.Linear(3, 2)
        kept = copy.deepcopy(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for (x,) in DataLoader(TensorDataset(torch.ones(4, 3)), 2):
            model(x).sum().backward()
            optimizer.step()
    if made.topology.rank == 0:
        _epoch(kept, [(torch.ones(2, 3), torch.tensor([0, 1]))])
    return [number for p in kept.parameters() for number in p.detach().flatten().tolist()]
