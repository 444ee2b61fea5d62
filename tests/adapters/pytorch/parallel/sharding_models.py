"""Models, data and a plain loop, for strategies that split a model."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

import dream

WIDTH, WORDS, CLASSES = 16, 20, 4
Make = Callable[[Iterable[Any]], Optimizer]


def momentum(parameters: Iterable[Any]) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters: Iterable[Any]) -> Optimizer:
    """At torch's own rate: it divides by the gradient's size, so that where there is next to none
    rounding moves an element by up to 1e-4 of the rate."""
    return torch.optim.AdamW(parameters, lr=1e-3)


class Attention(nn.Module):
    """By hand. ways: "literal" heads in the view; "attribute"; with a "mask" made on the way;
    "permuted"; with a "bias" for each head that is trained, and belongs to no layer."""

    def __init__(self, way: str = "literal", heads: int = 4) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.way, self.heads = way, heads
        if way == "bias":
            self.bias = nn.Parameter(torch.linspace(-1, 1, 4 * 6 * 6).view(4, 6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        heads = self.heads if self.way == "attribute" else 4

        def apart(z: torch.Tensor) -> torch.Tensor:
            if self.way == "permuted":
                return z.unflatten(-1, (heads, -1)).permute(0, 2, 1, 3)
            return z.view(batch, time, heads, width // heads).transpose(1, 2)

        q, k, v = apart(self.query(x)), apart(self.key(x)), apart(self.value(x))
        if self.way == "mask":
            seen = torch.tril(torch.ones(time, time))
            scores = q @ k.transpose(-2, -1) / math.sqrt(width // heads)
            mixed = scores.masked_fill(seen == 0, float("-inf")).softmax(dim=-1) @ v
        elif self.way == "bias":
            scores = (q * 0.5).matmul(k.transpose(2, 3)) + self.bias
            mixed = torch.matmul(F.softmax(scores, dim=3), v)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    def __init__(self, way: str = "literal", heads: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend = Attention(way, heads)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.before(x))
        hidden = F.gelu(self.up(self.between(x)))
        if self.dropout:
            hidden = F.dropout(hidden, self.dropout, self.training)
        return x + self.down(hidden)


class Reader(nn.Module):
    """A small transformer: words in, a class out."""

    def __init__(self, way: str = "literal", heads: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(6, WIDTH)
        self.blocks = nn.ModuleList(Block(way, heads, dropout) for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.words(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden.mean(dim=1))


class Tower(nn.Module):
    """Enough bytes to weigh. Made of blocks of repeated layers."""

    def __init__(self, width: int = 256, depth: int = 4) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            *(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth))
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x))


def sentences(count: int = 19) -> TensorDataset:
    """Rows of 6 words, and a class that hangs on them; the last of batches of 16 has three rows."""
    draw = np.random.default_rng(3)
    words = torch.from_numpy(draw.integers(0, WORDS, size=(count, 6)))
    return TensorDataset(words, words.sum(dim=1) % CLASSES)


def train(
    model: nn.Module,
    optimizer: Optimizer,
    data: TensorDataset | None = None,
    *,
    epochs: int = 2,
    between: Callable[[], object] = lambda: None,
) -> None:
    """4 steps of the loop that users write, of which two are uneven."""
    for _ in range(epochs):
        for x, y in DataLoader(data or sentences(), batch_size=16):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            between()
            optimizer.step()


def alone(make_model: Callable[[], nn.Module], make: Make, **options: Any) -> dict[str, Any]:
    """What plain torch ends with."""
    torch.manual_seed(0)
    model = make_model()
    train(model, make(model.parameters()), **options)
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def split(
    make_model: Callable[[], nn.Module], make: Make, name: str, **options: Any
) -> dict[str, Any]:
    """The same under a strategy; whole parameters on every rank."""
    torch.manual_seed(0)
    with dream.strategy(name, framework="torch", **options) as strategy:
        model = make_model()
        train(model, make(model.parameters()))
        return strategy.full_state(model)


def apart(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """The largest difference, by name."""
    assert list(ours) == list(theirs)
    return {name: float(np.abs(ours[name] - theirs[name]).max()) for name in ours}


def held(tensors: Iterable[Any]) -> int:
    """The bytes of what this rank holds of them."""
    total = 0
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            total += own.numel() * own.element_size()
    return total


def refused(act: Callable[[], object]) -> str:
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


@contextmanager
def heard() -> Iterator[list[str]]:
    """What dream says meanwhile."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dream").addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger("dream").removeHandler(handler)
