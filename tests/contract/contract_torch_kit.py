"""Data, models and loops of the torch cases."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from contract_case import LAST, Cases
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import DataLoader, Dataset, TensorDataset

CASES = Cases()
BATCH = 16
LONG = 5
"""Epochs of four batches: the 20 steps of the law."""
EPOCHS = 3
"""Those of cases about other things than how numbers go apart with the steps."""


def start() -> None:
    """The same generators before every case."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


def arrays(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs of shape (samples, 8) and classes below 4; the classes depend on the inputs, and
    samples differ in size, so that a wrong weight of any one shows."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(samples, 8)).astype(np.float32)
    x *= draw.uniform(0.5, 2.0, size=(samples, 1)).astype(np.float32)
    y = (np.abs(x[:, :4])).argmax(axis=1)
    return torch.from_numpy(x), torch.from_numpy(y)


def samples_of(count: int) -> TensorDataset:
    return TensorDataset(*arrays(count))


class Indexed(Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """Samples that know their index."""

    def __init__(self, count: int) -> None:
        self.x, self.y = arrays(count)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, self.x[index], self.y[index]


class Net(nn.Module):
    """An encoder and a head."""

    def __init__(self, inputs: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, 16), nn.Tanh())
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


def momentum(parameters: Iterable[Any]) -> SGD:
    return SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters: Iterable[Any]) -> AdamW:
    return AdamW(parameters, lr=1e-2)


def train(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Iterable[Any],
    *,
    epochs: int = EPOCHS,
    loss: Callable[[Any, Any], torch.Tensor] = F.cross_entropy,
    between: Callable[[], object] = lambda: None,
) -> list[int]:
    """The loop that users write; the sizes of the batches it saw."""
    sizes = []
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            between()
            optimizer.step()
            sizes.append(len(y))
    return sizes


def loader(samples: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(samples_of(samples), batch_size=BATCH, **options)


def array(tensor: torch.Tensor) -> np.ndarray:
    """A copy; where ranks hold parts of the tensor, of the whole, and each of them calls this."""
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach().numpy().copy()


def parameters(*modules: nn.Module) -> dict[str, np.ndarray]:
    """Copies of all parameters and buffers by name."""
    return {
        f"{index}.{name}": array(tensor)
        for index, module in enumerate(modules)
        for name, tensor in _state(module).items()
    }


def _state(module: nn.Module) -> dict[str, Any]:
    """Of a model in stages, what the ranks hold together."""
    state = module.state_dict()
    if not any(tensor.is_meta for tensor in state.values()):
        return state
    (strategy,) = LAST
    return {name: torch.from_numpy(value) for name, value in strategy.full_state(module).items()}
