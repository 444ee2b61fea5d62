"""Models that the tests of plans build, in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Attention and an MLP, as transformers have them."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, w = x.shape
        h = self.norm(x)
        q, k, v = (
            layer(h).view(b, t, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, w)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(x)))


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.blocks = nn.ModuleList(Attention() for _ in range(3))
        self.head = nn.Linear(32, 50)

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def tokens() -> Any:
    return Tokens(), (torch.randint(0, 50, (8, 16)), torch.randint(0, 50, (8, 16)))


def dense() -> Any:
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    return model, (torch.randn(16, 20), torch.randint(0, 3, (16,)))


def images() -> Any:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(8 * 64, 10),
    )  # fmt: skip
    return model, (torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,)))


def regression() -> Any:
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
    return model, lambda y, target: (y - target).abs().mean(), (torch.ones(6, 5), torch.ones(6, 2))


def huge() -> Any:
    """More than any machine holds: 40 TB of parameters."""
    model = nn.Sequential(*(nn.Linear(10**6, 10**6) for _ in range(10)))
    return model, (torch.randn(4, 10**6), torch.randn(4, 10**6))


def unfed() -> Any:
    return nn.Linear(3, 3)


def looking() -> Any:
    class Looking(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (x.sum().item() + 1)

    return Looking(3, 3), (torch.ones(2, 3),)


def as_array() -> Any:
    class Reading(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + float(x.numpy().mean())

    return Reading(3, 3), (torch.ones(2, 3),)


def wanting(width: int) -> Any:
    return nn.Linear(width, 3), (torch.ones(2, width),)


MODELS = {name: globals()[name] for name in ("tokens", "dense", "images", "regression")}


def raising() -> Any:
    return {}["nothing"]


def misfit() -> Any:
    return nn.Linear(9, 3), (torch.randn(16, 20), torch.randn(16, 3))


def untrained() -> Any:
    return nn.ReLU(), (torch.randn(16, 20), torch.randn(16, 20))


def leaving() -> Any:
    raise SystemExit(3)
