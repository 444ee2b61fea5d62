"""Two models that everybody knows, as they are published: ResNet-50 and GPT-2 small.

Sources of the counts: He et al. 2015 (4.1e9 multiplications and additions of a 224 x 224 image);
Chowdhery et al. 2022, appendix B (6 N + 12 L d T operations of a token, forward and backward).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Optimizing = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True)
class Work:
    """operations: of a step, by which the share of the device's peak is told."""

    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    loss: Loss
    optimizer: Optimizing
    operations: float


class Bottleneck(nn.Module):
    def __init__(self, taken: int, width: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(taken, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        self.short: nn.Module = nn.Identity()
        if stride != 1 or taken != 4 * width:
            conv = nn.Conv2d(taken, 4 * width, 1, stride, bias=False)
            self.short = nn.Sequential(conv, nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.inner(x) + self.short(x), inplace=True)


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    taken = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for block in range(blocks):
            layers.append(Bottleneck(taken, width, 2 if stage and not block else 1))
            taken = 4 * width
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(taken, 1000))
    return nn.Sequential(*layers, *head)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, words: int, length: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.words(tokens) + self.places(places))
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def works(device: str, rows: int = 0) -> dict[str, Work]:
    """Return the two. rows: of a batch; 0 for what is usual."""
    images, texts, length, width, layers = rows or 128, rows or 8, 1024, 768, 12

    def pictures() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(images, 3, 224, 224, device=device)
        y = torch.randint(1000, (images,), device=device)
        return x.to(memory_format=torch.channels_last), y

    def tokens() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randint(50304, (texts, length), device=device)
        return x, x.roll(-1, 1)

    def of_words(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())

    parameters = 124_000_000
    return {
        "ResNet-50": Work(
            lambda: resnet50().to(device, memory_format=torch.channels_last),
            pictures,
            F.cross_entropy,
            lambda own: torch.optim.SGD(own, lr=0.1, momentum=0.9, weight_decay=1e-4),
            3 * 2 * 4.1e9 * images,
        ),
        "GPT-2 small": Work(
            lambda: GPT(50304, length, layers, width, 12).to(device),
            tokens,
            of_words,
            lambda own: torch.optim.AdamW(own, lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1),
            (6 * parameters + 12 * layers * width * length) * texts * length,
        ),
    }
