"""Models that give what is no tensor, list or dict, or that read their parts' parameters by name:
trained on one device and in shards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from sharding_models import heard
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream


@dataclass
class Given:
    logits: torch.Tensor


class Direct(nn.Module):
    """Has no part that FSDP2 would gather by itself. way: how it gives its logits."""

    def __init__(self, way: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3) * 0.3)
        self.way = way

    def forward(self, x: torch.Tensor) -> Any:
        return self.way(x @ self.weight)


class Parts(Direct):
    def __init__(self, way: Callable[[torch.Tensor], Any]) -> None:
        super().__init__(way)
        self.inner, self.outer = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(self.outer(torch.tanh(self.inner(x))))


class Leaves(Parts):
    """Returns none, and leaves its output in an attribute."""

    def __init__(self) -> None:
        super().__init__(lambda logits: logits)
        self.logits = torch.zeros(())

    def forward(self, x: torch.Tensor) -> Any:
        self.logits = super().forward(x)


class Nowhere(nn.Module):
    """Leaves its output in what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, batch: dict[str, torch.Tensor]) -> None:
        batch["logits"] = self.layer(batch["x"])


class Tied(nn.Module):
    """A decoder by the encoder's weights, in a method; and a codebook in the forward itself."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.book = nn.Linear(6, 3), nn.Embedding(4, 3)

    def decoded(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden, self.encoder.weight.t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(x)
        near = self.book(torch.cdist(hidden, self.book.weight).argmin(1))
        return self.decoded(hidden + near)[:, :3]


class Head(nn.Module):
    """Computes with a parameter of its own in a method beside `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.classes = nn.Linear(6, 4), nn.Parameter(torch.randn(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.classes.t()


class Outer(nn.Module):
    """Calls that method of its part."""

    def __init__(self) -> None:
        super().__init__()
        self.head = Head()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head.logits(self.head(x))


def _logits(given: Any) -> torch.Tensor:
    found: torch.Tensor = given if isinstance(given, torch.Tensor) else given.logits
    return found


CASES: dict[str, Callable[[], nn.Module]] = {
    "dataclass": lambda: Direct(Given),
    "namespace": lambda: Parts(lambda logits: SimpleNamespace(logits=logits)),
    "distribution": lambda: Parts(lambda logits: torch.distributions.Categorical(logits=logits)),
    "attribute": Leaves,
    "tied": Tied,
    "method": Outer,
}


def trained(make: Callable[[], nn.Module], block: Any) -> list[torch.Tensor]:
    torch.manual_seed(3)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    with block:
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for x, y in DataLoader(data, batch_size=5):
            given = model(x)
            loss = F.cross_entropy(_logits(model if given is None else given), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        wholes = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return [whole.detach().clone() for whole in wholes]


def gaps(name: str) -> dict[str, float]:
    """The largest difference from one device, by zero=."""
    plain = trained(CASES[name], contextlib.nullcontext())
    found = {}
    for zero in (2, 3):
        ours = trained(CASES[name], dream.strategy("sharded", framework="torch", zero=zero))
        pairs = zip(plain, ours, strict=True)
        found[f"zero={zero}"] = max(float((a - b).abs().max()) for a, b in pairs)
    return found


def said_of_nowhere() -> list[str]:
    """What is said of it in one call."""
    with heard() as lines, dream.strategy("sharded", framework="torch"):
        model = Nowhere()
        for (x,) in DataLoader(TensorDataset(torch.randn(4, 6)), batch_size=4):
            model({"x": x})
    return lines
