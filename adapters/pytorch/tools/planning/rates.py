"""Measure what torch computes and moves a second on this machine, in this process.

`reference_model` is a small transformer, from which is read what a
strategy costs beside the operations themselves.
"""

from __future__ import annotations

import mmap
from statistics import median
from time import perf_counter

import torch
from torch import nn
from torch.nn import functional as F

from dream.adapters.pytorch.tools.planning.ledger import Ledger
from dream.tools.plan.readings import Rates, median_seconds

_WIDTH = 512
_LAYERS = 20
_ANEW, _TIMES = 16 << 20, 5
"""Bytes that the system gives, and how often."""
_LARGE = 4 << 20
"""Elements: more than caches hold."""


def measure_rates(dtype: str) -> Rates:
    """dtype: as torch spells it."""
    kind = getattr(torch, dtype)
    a, b = torch.randn(_WIDTH, _WIDTH, dtype=kind), torch.randn(_WIDTH, _WIDTH, dtype=kind)
    image = torch.randn(8, 32, 32, 32, dtype=kind)
    kernel = torch.randn(64, 32, 3, 3, dtype=kind)
    x, y = torch.randn(_LARGE), torch.randn(_LARGE)
    out = torch.empty_like(x)
    product = median_seconds(lambda: a @ b)
    convolved = median_seconds(lambda: F.conv2d(image, kernel, padding=1))
    added = median_seconds(lambda: torch.add(x, y, out=out))
    return Rates(
        matmul=2 * _WIDTH**3 / product,
        convolution=2 * 8 * 64 * 32 * 9 * 32 * 32 / convolved,
        bandwidth=3 * x.numel() * x.element_size() / added,
        launch=_launch(),
        fresh=median(_fresh() for _ in range(_TIMES)),
    )


def _fresh() -> float:
    """Return the seconds of a byte that is written for the first time, beside those of writing
    it."""
    with mmap.mmap(-1, _ANEW) as memory:
        given = torch.frombuffer(memory, dtype=torch.uint8)
        taken = []
        for _ in range(2):
            begin = perf_counter()
            given.zero_()
            taken.append(perf_counter() - begin)
        del given  # or the memory could not be given back
    return max(0.0, taken[0] - taken[1]) / _ANEW


def _launch() -> float:
    """Return the seconds that an operation of a training step costs however small it is."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(_LAYERS)))
    x = torch.ones(2, 4)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(x).sum().backward()

    ledger = Ledger()
    with ledger:
        step()
    return median_seconds(step) / len(ledger.done)


_MODEL_WIDTH, _HEADS, _BLOCKS, _WORDS, _LENGTH, _BATCH = 32, 4, 3, 50, 8, 8


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(_MODEL_WIDTH), nn.LayerNorm(_MODEL_WIDTH)
        self.query, self.key, self.value = (nn.Linear(_MODEL_WIDTH, _MODEL_WIDTH) for _ in range(3))
        self.out = nn.Linear(_MODEL_WIDTH, _MODEL_WIDTH)
        self.up, self.down = (
            nn.Linear(_MODEL_WIDTH, 4 * _MODEL_WIDTH),
            nn.Linear(4 * _MODEL_WIDTH, _MODEL_WIDTH),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        h = self.norm1(x)
        heads = (
            layer(h).view(rows, length, _HEADS, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(*heads).transpose(1, 2)
        x = x + self.out(mixed.reshape(rows, length, width))
        changed: torch.Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + changed


def reference_model() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    model = nn.Sequential(
        nn.Embedding(_WORDS, _MODEL_WIDTH),
        *(_Block() for _ in range(_BLOCKS)),
        nn.Linear(_MODEL_WIDTH, _WORDS),
    )
    tokens = torch.randint(0, _WORDS, (_BATCH, _LENGTH))
    return model, (tokens, tokens)
