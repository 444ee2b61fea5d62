"""Models, and what their training keeps, where layers to recompute are chosen by memory."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, TensorDataset

import dream

SAMPLES, CLASSES = 11, 3


class Block(nn.Module):
    """Two branches, with dropout in each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, dropout=0.1, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.inner = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.inner(self.norms[1](x))


class Transformer(nn.Module):
    shape = (24, 16)

    def __init__(self, depth: int = 6) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(self.shape[1]) for _ in range(depth))
        self.head = nn.Linear(self.shape[1], CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x).sigmoid()


class Recurrent(nn.Module):
    """Convolutions with BatchNorm beside each other, then LSTMs."""

    shape = (24, 8)

    def __init__(self) -> None:
        super().__init__()
        self.convolved = nn.ModuleList(Residual() for _ in range(4))
        self.lstms = nn.ModuleList(nn.LSTM(8, 8, batch_first=True) for _ in range(3))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for residual in self.convolved:
            x = residual(x.transpose(1, 2)).transpose(1, 2)
        for lstm in self.lstms:
            x = x + lstm(x)[0]
        return self.head(x[:, -1])


class Remembering(nn.Module):
    """Parts of it compute with what their calls before have left."""

    shape = (24, 16)

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(16, 16), Smoothed(), Smoothed()])
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Smoothed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = torch.tanh(x + self.mean) * 1.5
        self.mean = x.detach().mean()
        return x


class Lines(logging.Handler):
    """What dream says."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def trained(strategy: str, kind: Any, how: Any, **options: Any) -> tuple[dict[str, Any], list[str]]:
    """Parameters and buffers after two uneven epochs, and what was said of recomputing."""
    lines = Lines()
    logger = logging.getLogger("dream")
    logger.addHandler(lines)
    level = logger.level
    torch.manual_seed(0)
    try:
        with dream.strategy(strategy, framework="torch", recompute=how, **options) as made:
            logger.setLevel(logging.INFO)
            model = kind()
            optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
            generator = torch.Generator().manual_seed(1)
            x = torch.randn(SAMPLES, *kind.shape, generator=generator)
            y = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
            for _ in range(2):
                for inputs, target in DataLoader(TensorDataset(x, y), batch_size=6):
                    optimizer.zero_grad()
                    F.cross_entropy(model(inputs), target).backward()
                    optimizer.step()
            state = made.full_state(model)
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)
    return state, [line for line in lines.said if line.startswith("recompute")]


def compared(strategy: str, kinds: list[str], options: dict[str, Any]) -> list[Any]:
    """For each kind: how far from keeping all, and the lines."""
    found = []
    for name in kinds:
        kind = globals()[name]
        kept, _ = trained(strategy, kind, False, **options)
        again, lines = trained(strategy, kind, "auto", memory_budget=0.7, **options)
        off = max(float(np.abs(kept[key] - again[key]).max()) for key in kept)
        found.append([off, lines])
    return found


class Live(TorchDispatchMode):
    """The bytes of tensors that operations made and that are still there: now, and at most."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[StorageWeakRef, int] = {}
        self.most = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor):
                self._made[StorageWeakRef(x.untyped_storage())] = x.untyped_storage().nbytes()
        self.most = max(self.most, self.now)
        return result

    @property
    def now(self) -> int:
        self._made = {ref: size for ref, size in self._made.items() if not ref.expired()}
        return sum(self._made.values())


def kept(how: Any, budget: Any = None) -> tuple[int, int]:
    """The bytes that a Transformer's third step keeps for backward, and the most at any time."""
    torch.manual_seed(0)
    options = {} if budget is None else {"memory_budget": budget}
    with dream.strategy("single", framework="torch", recompute=how, **options):
        model = Transformer()
        x = torch.randn(16, *Transformer.shape)
        for _ in range(2):
            model(x).sum().backward()
        with Live() as live:
            output = model(x).sum()
            after = live.now
            output.backward()
    return after, live.most


def on_a_gpu(how: Any, **options: Any) -> dict[str, Any]:
    """What a GPU holds at most in a third step, and the parameters after it."""
    torch.manual_seed(0)
    with dream.strategy("single", framework="torch", recompute=how, **options):
        model = Transformer().cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(256, *Transformer.shape).cuda()
        for _ in range(3):
            torch.cuda.reset_peak_memory_stats()
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        most = torch.cuda.max_memory_allocated()
    return {"most": most, "parameters": [p.detach().cpu().numpy() for p in model.parameters()]}
