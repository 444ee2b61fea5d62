"""Two habits that torch has on a GPU alone, and models that FSDP2 trains wrong by them; a CPU is
given them here."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Have gradients be computed in a thread of their own, which numbers what it makes by itself,
    and recurrent layers move their weights into one piece of memory."""
    grad, flatten = torch.autograd.grad, nn.RNNBase.flatten_parameters
    torch.autograd.grad = _in_a_thread(grad)
    nn.RNNBase.flatten_parameters = _into_one_piece  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autograd.grad = grad
        nn.RNNBase.flatten_parameters = flatten  # type: ignore[method-assign]


def _in_a_thread(grad: Any) -> Any:
    def differentiate(*args: Any, **kwargs: Any) -> Any:
        made: list[Any] = []
        thread = threading.Thread(target=lambda: made.append(grad(*args, **kwargs)))
        thread.start()
        thread.join()
        return made[0]

    return differentiate


@torch.no_grad()
def _into_one_piece(layer: nn.RNNBase) -> None:
    weights = [w for w in layer.parameters() if not isinstance(w, DTensor)]
    if weights:
        piece = torch.cat([w.reshape(-1) for w in weights])
        for weight, part in zip(weights, piece.split([w.numel() for w in weights]), strict=True):
            weight.set_(part.view_as(weight))  # type: ignore[call-overload]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rnn.flatten_parameters()
        out: torch.Tensor = self.head(self.rnn(x)[0][:, -1])
        return out


def recurrent(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def penalised(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Slopes by the inputs, and their own, are in the loss."""
    rows = x[:, 0].clone().requires_grad_()
    out = model(rows)
    (slope,) = torch.autograd.grad(out.sum(), rows, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), rows, create_graph=True)
    return ((bend + slope).pow(2).sum(1) + F.cross_entropy(out, y, reduction="none")).mean()


LOSSES = {"recurrent": recurrent, "penalised": penalised}


def sharded(what: str, zero: int) -> list[float]:
    with as_on_a_gpu(), dream.strategy("sharded", zero=zero):
        return train(what)


def train(what: str) -> list[float]:
    """Return the losses of three epochs."""
    torch.manual_seed(5)
    mlp = (nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    model = Recurrent() if what == "recurrent" else nn.Sequential(*mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = TensorDataset(torch.randn(38, 5, 4), torch.randint(0, 3, (38,)))
    history = []
    for _ in range(3):
        for x, y in DataLoader(data, batch_size=8, shuffle=True):
            optimizer.zero_grad()
            loss = LOSSES[what](model, x, y)
            loss.backward()
            optimizer.step()
            history.append(loss.item())
    return history
