"""GPT-2 XL, to be planned for before anything is rented; nothing here is trained.

dream plan examples/plan_gpt2.py:xl --devices 8 --device-memory 24GB
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

Batch = tuple[torch.Tensor, torch.Tensor]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        q = self.query(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = self.key(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        v = self.value(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, width: int, depth: int, heads: int, length: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.head(self.norm(self.blocks(self.embed(tokens) + self.place)))
        return x


def batch(samples: int, length: int, vocabulary: int) -> Batch:
    tokens = torch.randint(0, vocabulary, (samples, length + 1))
    return tokens[:, :-1], tokens[:, 1:]


def small() -> tuple[nn.Module, Batch]:
    """4 layers, for a laptop: `--calibrate --measure` trains it."""
    return GPT(1000, 128, 4, 4, 64), batch(16, 64, 1000)


def xl() -> tuple[nn.Module, Batch]:
    """1.6 billion parameters, 1024 tokens a sample."""
    return GPT(50257, 1600, 48, 25, 1024), batch(8, 1024, 50257)
