"""A small transformer in stages: each rank holds some of its layers.

dream run -n 2 examples/pipeline.py              two stages
dream run -n 4 --strategy hybrid:data=2,model=2 examples/pipeline.py

It reads lines of a text that this file carries, and learns to say the next letter.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream

TEXT = "the cat sat on the mat and the dog sat on the log while the rat ran round the hat. " * 40
LETTERS = sorted(set(TEXT))
CODES = torch.tensor([LETTERS.index(letter) for letter in TEXT])
LENGTH, WIDTH = 24, 48
windows = CODES.unfold(0, LENGTH + 1, 3)
data = TensorDataset(windows[:, :-1], windows[:, 1:])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (4, -1)).transpose(1, 2)
            for part in self.qkv(self.first(x)).chunk(3, -1)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).flatten(2))
        return x + self.think(self.second(x))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter = nn.Embedding(len(LETTERS), WIDTH)
        self.place = nn.Parameter(torch.zeros(1, LENGTH, WIDTH))
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(LETTERS))

    def forward(self, letters):
        x = self.letter(letters) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def right(output, target):
    return (output.argmax(-1) == target).float().mean(dim=1)


torch.manual_seed(0)
with dream.strategy("model_parallel", split="pipeline", schedule="1f1b") as strategy:
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = DataLoader(data, batch_size=64, shuffle=True)
    model, optimizer, batches = strategy.prepare(model, optimizer, batches)
    step = strategy.train_step(model, loss, optimizer)
    for _ in range(4):
        for batch in batches:
            value = step(*batch)
    found = strategy.evaluate(model, DataLoader(data, batch_size=64), {"right": right})

held = sum(p.numel() for p in model.parameters() if not p.is_meta)
print(
    f"rank {strategy.topology.rank} holds {held} of {sum(p.numel() for p in model.parameters())} "
    f"parameters; loss {float(value):.3f}, letters right {found['right']:.3f}"
)
