"""A small transformer: what a strategy costs beside the operations themselves is read from it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

_WIDTH, _HEADS, _BLOCKS, _WORDS, _LENGTH, _BATCH = 32, 4, 3, 50, 8, 8


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.query, self.key, self.value = (nn.Linear(_WIDTH, _WIDTH) for _ in range(3))
        self.out = nn.Linear(_WIDTH, _WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

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


def transformer() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    model = nn.Sequential(
        nn.Embedding(_WORDS, _WIDTH), *(_Block() for _ in range(_BLOCKS)), nn.Linear(_WIDTH, _WORDS)
    )
    tokens = torch.randint(0, _WORDS, (_BATCH, _LENGTH))
    return model, (tokens, tokens)
