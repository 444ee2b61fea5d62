"""A character language model that learns to write like this repository's own CONTRIBUTING.md.

python examples/language_model.py                                one process
dream run -n 2 examples/language_model.py                        the same figures, the same text
dream run -n 2 --strategy sharded examples/language_model.py     or any other word
python examples/language_model.py --text book.txt --steps 5000 --width 256 --layers 6

Text is a stream: each batch is drawn from it at random places, so there is no data set and no
loader. `strategy.share` gives each rank its rows of a batch that all ranks have drawn alike.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import dream

parser = argparse.ArgumentParser()
here = Path(__file__).parent
parser.add_argument("--text", type=Path, default=here.parent / "CONTRIBUTING.md")
parser.add_argument("--steps", type=int, default=150)
parser.add_argument("--batch-size", type=int, default=32, help="the global one")
parser.add_argument("--length", type=int, default=64, help="characters that are looked back at")
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--layers", type=int, default=2)
args = parser.parse_args()

text = args.text.read_text()
letters = sorted(set(text))
number = {letter: index for index, letter in enumerate(letters)}
codes = torch.tensor([number[letter] for letter in text])
train, test = codes[: len(codes) * 9 // 10], codes[len(codes) * 9 // 10 :]


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.before(x)
        q, k, v = (
            layer(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Writer(nn.Module):
    """(n, time) letters to (n, time, letters) scores of the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(letters), args.width)
        self.places = nn.Embedding(args.length, args.width)
        self.blocks = nn.Sequential(*(Block(args.width) for _ in range(args.layers)))
        self.head = nn.Linear(args.width, len(letters))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.letters(x) + self.places(torch.arange(x.shape[1]))))


def windows(codes: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What stands at these places, and what stands one further: (n, length) each."""
    x = torch.stack([codes[place : place + args.length + 1] for place in places.tolist()])
    return x[:, :-1], x[:, 1:]


def mean_loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def written(model: nn.Module, begin: str, count: int) -> str:
    """Begin, and the `count` likeliest letters after it."""
    for _ in range(count):
        seen = torch.tensor([[number[letter] for letter in begin[-args.length :]]])
        begin += letters[int(model(seen)[0, -1].argmax())]
    return begin


torch.manual_seed(0)
with dream.strategy("mirrored") as strategy:
    model = Writer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for step in range(1, args.steps + 1):
        places = torch.randint(len(train) - args.length, (args.batch_size,))  # alike on every rank
        x, y = strategy.share(*windows(train, places))
        optimizer.zero_grad()
        loss = mean_loss(model, x, y)
        loss.backward()
        optimizer.step()
        if step % 50 == 0 and strategy.topology.rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)

    model.eval()
    with torch.no_grad():
        every = torch.arange(0, len(test) - args.length, args.length)
        print(f"test loss {mean_loss(model, *windows(test, every)):.4f}")
        print(written(model, "tests/", 60))
