"""A small transformer on a mesh: copies of a model, each cut by tensors.

python examples/hybrid_transformer.py                one process
dream run -n 4 examples/hybrid_transformer.py        two copies, each in two halves

It learns the sentences of tensor.py. The loop is the usual one, clipping included: the norm is that
of the whole model's gradient over the whole batch, wherever its parts lie.
"""

import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream

SUBJECTS = {"the cat": "purrs", "the dog": "barks", "the bird": "sings", "the cow": "moos"}
PLACES = ["in the house", "by the river", "under the tree"]
TIMES = {"in the morning": "today", "at night": "tonight"}
draw = random.Random(0)
LENGTH, WIDTH, HEADS = 9, 32, 4


def sentence() -> list[str]:
    """What comes last hangs on the first words, so that there is something to look back for."""
    subject, time = draw.choice(list(SUBJECTS)), draw.choice(list(TIMES))
    words = f"{time} {subject} {draw.choice(PLACES)} {SUBJECTS[subject]} {TIMES[time]}".split()
    return (["."] * (LENGTH + 1) + words)[-LENGTH - 1 :]


sentences = [sentence() for _ in range(512)]
words = {word: index for index, word in enumerate(sorted({w for s in sentences for w in s}))}
words |= {f"unused {index}": len(words) + index for index in range(-len(words) % 4)}
tokens = torch.tensor([[words[word] for word in line] for line in sentences])
train, test = tokens[:400], tokens[400:]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        normed = self.before(x)
        q, k, v = (
            layer(normed).view(batch, time, HEADS, WIDTH // HEADS).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Writer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(len(words), WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, len(words))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.words(x) + self.places(torch.arange(x.shape[1]))
        return self.head(self.blocks(hidden))


def loss(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(prediction.flatten(0, 1), target.flatten())


torch.manual_seed(0)
with dream.strategy("hybrid", split="tensor") as strategy:
    model = Writer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = DataLoader(TensorDataset(train[:, :-1], train[:, 1:]), batch_size=40, shuffle=True)

    for _ in range(8):
        for x, y in batches:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    def right(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Of the last two words, which hang on the first ones."""
        return (prediction.argmax(-1) == target)[:, -2:].double().mean(dim=1)

    tests = DataLoader(TensorDataset(test[:, :-1], test[:, 1:]), batch_size=40)
    accuracy = strategy.evaluate(model, tests, {"accuracy": right})["accuracy"]
    own = sum(p.to_local().numel() if hasattr(p, "to_local") else p.numel()
              for p in model.parameters())  # fmt: skip
    every = sum(value.size for value in strategy.full_state(model).values())

print(f"test accuracy {accuracy:.3f}")
print(f"this rank holds {own / every:.2f} of the parameters")
