"""Scripts that draw random numbers in every way there is, in the block and without it."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import nullcontext
from queue import Queue
from threading import Thread
from time import sleep
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import cat, nn, randn_like
from torch import rand as uniform
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split

import dream

SAMPLES, BATCH, EPOCHS = 45, 16, 2


class Attention(nn.Module):
    """Tokens with a dropped-out table of positions, which is no sample's."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(2, 8), nn.Linear(8, 4)
        self.places = nn.Parameter(torch.randn(4, 8) * 0.1)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=batch_first)
        self.batch_first = batch_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.embed(x.view(-1, 4, 2)) + F.dropout(self.places, 0.1, self.training)
        if self.batch_first:
            return self.head(self.layer(tokens).mean(1))
        return self.head(self.layer(tokens.transpose(0, 1)).mean(0))


class Late(nn.Module):
    """Draws from its third call on, whose share is uneven."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(8, 4), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rrelu(self.layer(x), training=self.calls > 1)


class Noise(nn.Module):
    """What a variational net, a diffusion model and a noisy layer draw."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, spread = self.mean(x), self.spread(x)
        rows = x.shape[0]
        noise = torch.randn(rows, 4) + torch.rand(len(x), 1) + torch.normal(torch.zeros(4), 1.0)
        noise = noise + torch.bernoulli(torch.sigmoid(mean.detach())) + F.gumbel_softmax(spread)
        noise = (
            noise + torch.randint(0, 10, (rows,))[:, None] + torch.empty(rows, 1).bernoulli_(0.5)
        )
        weights = (
            torch.randn_like(self.mean.weight).sum(1)
            + torch.distributions.Normal(mean.detach(), 1.0).sample()
        )
        return mean + torch.randn_like(spread) * (0.5 * spread).exp() + 0.1 * (noise + weights)


class Again(nn.Module):
    """Dropout that a backward pass computes again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.middle = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(checkpoint(self.middle, self.first(x), use_reentrant=False))
        return out


class OfWeights(nn.Module):
    """Drops and adds noise to what is made of its parameters, which have as many rows as a share on
    some ranks, and to what only looks like that: an input with a gradient, a parameter for each
    row."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Parameter(torch.randn(8, 3)), nn.Parameter(torch.randn(3, 8))
        self.start, self.steps = nn.Parameter(torch.randn(1, 8)), nn.Parameter(torch.randn(3, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.dropout(x.clone().requires_grad_().view(-1, 8), 0.3, self.training)
        start = F.dropout(self.start.expand(len(x), -1).tanh(), 0.3, self.training)
        steps = F.dropout(self.steps.expand(len(x), -1, -1), 0.3, self.training)
        weights = F.dropout((self.one @ self.other).relu().softmax(1), 0.3, self.training)
        weights = weights + 0.1 * randn_like(weights) * self.one.abs().mean()
        return self.head(((x + start) @ weights + steps.mean(1)).relu())


class Tables(nn.Module):
    """Drops from tables of which rows are picked by position, and from what a layer makes of one,
    all as many rows as a share has on some ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.table = nn.Embedding(8, 8), nn.Parameter(torch.randn(9, 8))
        self.short, self.layer = nn.Parameter(torch.randn(3, 5)), nn.Linear(5, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = F.dropout(self.places(torch.arange(8)), 0.3, self.training)
        picked = F.dropout(self.table[torch.arange(4)].tanh(), 0.3, self.training)
        layered = F.dropout(self.layer(self.short).relu(), 0.3, self.training)
        return self.head(x @ places + picked.mean(0) + layered.mean(0))


class Alike(nn.Module):
    """Drops from what a layer makes of a table and from what one makes of a batch, as large."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Parameter(torch.randn(8, 8)), nn.Linear(8, 8)
        self.head = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = F.dropout(self.layer(self.table), 0.3, self.training)
        return self.head(x @ table)


class TokensFirst(nn.Module):
    """Learned queries that lie before a batch's samples, and such that a batch's mask chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.embed = nn.Parameter(torch.randn(3, 8)), nn.Linear(8, 8)
        self.decoder = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.3)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        asked = self.asked.unsqueeze(1)
        answers = self.decoder(asked.expand(-1, len(x), -1), self.embed(x)[None])
        chosen = F.dropout(torch.where(x[:, :1] > 0, self.asked[0], self.asked[1]), 0.3)
        hidden = F.dropout(asked.masked_fill(x[None, :, :1] > 0, 0.0), 0.3)
        added = F.dropout(asked + x[None], 0.3)
        return self.head((answers + hidden + added).mean(0) + chosen)


def dropouts() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 6, 1), nn.Dropout2d(0.4), nn.SELU(),
        nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.2), nn.Dropout(0.3, inplace=True),
        nn.Flatten(), nn.Linear(24, 4),
    )  # fmt: skip


MODELS: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: nn.Sequential(
        nn.Linear(8, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 4)
    ),
    "dropouts": dropouts,
    "attention": lambda: Attention(batch_first=True),
    "sequence_first": lambda: Attention(batch_first=False),
    "noise": Noise,
    "again": Again,
    "of_weights": OfWeights,
    "tables": Tables,
    "alike": Alike,
    "tokens_first": TokensFirst,
}


def data() -> TensorDataset:
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(SAMPLES, 8, generator=draw)
    return TensorDataset(x, torch.randint(0, 4, (SAMPLES,), generator=draw))


def flat(model: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()


def train(kind: str, *, late: bool = False, block: Any = nullcontext) -> np.ndarray:
    """A loader made anew each epoch, and an evaluation without no_grad after each. late: the last
    epoch comes after the block."""
    torch.manual_seed(3)

    def epoch() -> None:
        for x, y in DataLoader(data(), batch_size=BATCH, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        seen = sum(len(x) for x, _ in DataLoader(data(), batch_size=BATCH))
        assert seen == SAMPLES
        model.train()

    with block():
        model = MODELS[kind]()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(EPOCHS - late):
            epoch()
        batches = DataLoader(data(), batch_size=BATCH, shuffle=True)
    if late:
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return flat(model)


def folds(block: Any = nullcontext) -> np.ndarray:
    """Cross-validation: splits by NumPy, orders by Python, a model a fold."""
    np.random.seed(5)
    random.seed(5)
    torch.manual_seed(5)
    trained = []
    with block():
        for part in np.array_split(np.random.permutation(SAMPLES), 3):
            rest = np.setdiff1d(np.arange(SAMPLES), part)
            model = MODELS["dropout"]()
            optimizer = torch.optim.SGD(model.parameters(), lr=random.choice([0.05, 0.1]))
            subset = torch.utils.data.Subset(data(), rest.tolist())
            for inputs, targets in DataLoader(subset, batch_size=8, shuffle=True):
                optimizer.zero_grad()
                F.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
            model.eval()
            for inputs, _ in DataLoader(torch.utils.data.Subset(data(), part.tolist()), 8):
                model(inputs)
            trained.append(flat(model))
    return np.concatenate(trained)


def adversaries(block: Any = nullcontext) -> np.ndarray:
    """Noise drawn beside the calls, by the size of the batch."""
    torch.manual_seed(11)
    with block():
        make = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8))
        judge = nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
        makes = torch.optim.SGD(make.parameters(), lr=0.05)
        judges = torch.optim.SGD(judge.parameters(), lr=0.05)
        fixed = torch.randn(5, 3)
        for _ in range(2):
            for x, _ in DataLoader(data(), batch_size=20, shuffle=True):
                noise = torch.randn(x.size(0), 3)
                judges.zero_grad()
                real = F.softplus(-judge(x)).mean()
                real.backward()
                F.softplus(judge(make(noise).detach())).mean().backward()
                judges.step()
                makes.zero_grad()
                F.softplus(-judge(make(noise))).mean().backward()
                makes.step()
    return np.concatenate([flat(make), flat(judge), fixed.numpy().reshape(-1)])


def beside_the_calls(block: Any = nullcontext) -> np.ndarray:
    """Masks and amounts that the loop draws; shares are as wide as parameters. The
    weights are shaken too, which is nobody's row."""
    torch.manual_seed(13)
    with block():
        model = nn.Sequential(nn.Linear(8, 3), nn.Tanh(), nn.Linear(3, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(2):
            for x, _ in DataLoader(data(), batch_size=8, shuffle=True):
                amount = torch.randint(1, 5, (x.shape[0],))[:, None]
                kept = torch.bernoulli(torch.full(x.shape, 0.7)) * F.dropout(x, 0.2)
                noisy = kept + torch.randn_like(x) / amount
                noise = torch.rand(len(x), 2)
                optimizer.zero_grad()
                (model(noisy) - noise).square().mean().backward()
                for p in model.parameters():
                    p.grad += 0.01 * torch.randn_like(p.grad)
                    p.data += 0.01 * torch.randn(p.shape)
                optimizer.step()
    return flat(model)


def by_name(block: Any = nullcontext) -> np.ndarray:
    """Torch's functions by names of the script's own; and mixing rates of one law for all rows."""
    torch.manual_seed(17)
    with block():
        model = MODELS["dropout"]()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for x, _ in DataLoader(data(), batch_size=8, shuffle=True, drop_last=True):
            rates = torch.distributions.Beta(torch.full((len(x), 1), 0.4), 0.4).sample()
            rates = rates * torch.distributions.Gamma(2.0, 1.0).sample((len(x), 1))
            noisy = (x + randn_like(x)) * (uniform(len(x), 8) > 0.3) * rates
            optimizer.zero_grad()
            model(cat([x, noisy])).square().mean().backward()
            optimizer.step()
    return flat(model)


def teacher(block: Any = nullcontext) -> np.ndarray:
    """Dropout of a model that no backward comes to, for as much as a weight of its own has."""
    torch.manual_seed(19)
    with block():
        model, other = (
            nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Dropout(0.4), nn.Linear(6, 4))
            for _ in range(2)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for x, _ in DataLoader(data(), batch_size=8, shuffle=True):
            made = model(x)
            with torch.no_grad():
                told = other(x)
            optimizer.zero_grad()
            F.mse_loss(made, told).backward()
            optimizer.step()
    return flat(model)


def zipped(block: Any = nullcontext) -> np.ndarray:
    """Two shuffled loaders of one length give different batches."""
    torch.manual_seed(2)
    with block():
        model = MODELS["dropout"]()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        one, two = (DataLoader(data(), batch_size=BATCH, shuffle=True) for _ in range(2))
        for (x, y), (other, _) in zip(one, two, strict=True):
            optimizer.zero_grad()
            (F.cross_entropy(model(x), y) + 0.1 * model(other).square().mean()).backward()
            optimizer.step()
    return flat(model)


def two_loaders(block: Any = nullcontext) -> np.ndarray:
    """A batch of a new pass over another loader in each step; noise for it first, and for what the
    model gives of both."""
    torch.manual_seed(3)
    with block():
        model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        one, two = (DataLoader(data(), BATCH, shuffle=True) for _ in range(2))
        for _ in range(2):
            for x, y in one:
                u, v = next(iter(two))
                u = u + 0.1 * torch.randn(u.shape)
                x = x + 0.1 * torch.randn(x.shape)
                made, other = model(x), model(u)
                made = made + 0.1 * torch.randn_like(made)
                other = other + 0.1 * torch.randn_like(other)
                loss = F.cross_entropy(made, y) + F.cross_entropy(other, v)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return flat(model)


SCRIPTS: dict[str, Callable[..., np.ndarray]] = {
    **{kind: (lambda block=nullcontext, k=kind: train(k, block=block)) for kind in MODELS},
    "after_the_block": lambda block=nullcontext: train("dropout", late=True, block=block),
    "again_after_the_block": lambda block=nullcontext: train("again", late=True, block=block),
    "folds": folds,
    "adversaries": adversaries,
    "beside_the_calls": beside_the_calls,
    "by_name": by_name,
    "teacher": teacher,
    "zipped": zipped,
    "two_loaders": two_loaders,
}


def noisy(x: torch.Tensor, make: Callable[..., torch.Tensor] = torch.randn_like) -> torch.Tensor:
    """A default that is kept from before the block."""
    return x + make(x)


class Drawn(Dataset[torch.Tensor]):
    """Samples that take a while, and draw."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = torch.randn(8)
        sleep(0.002)
        return noise


def read_ahead(to: Queue[torch.Tensor | None]) -> None:
    for x in DataLoader(Drawn(), 6):
        to.put(x)
    to.put(None)


def known() -> None:
    """Draws that are one device's: of new layers, splits, attention beside a call; and in a thread
    that reads ahead."""
    model, query = MODELS["dropout"](), torch.ones(1, 4, 8)
    for x, _ in DataLoader(data(), batch_size=15):
        model(x).mean().backward()
        nn.Linear(3, 3)
        random_split(Drawn(), [20, 10])
        F.scaled_dot_product_attention(query, query, query, dropout_p=0.5)
    for _ in range(3):
        ahead: Queue[torch.Tensor | None] = Queue(2)
        thread = Thread(target=read_ahead, args=(ahead,))
        thread.start()
        while (read := ahead.get()) is not None:
            model(read).mean().backward()
        thread.join()


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def in_and_out() -> dict[str, tuple[float, Any]]:
    """How far each script ends in the block from where it ends without; and its parameters."""
    torch.set_num_threads(1)
    found = {}
    for name, script in SCRIPTS.items():
        plain, ours = script(), script(block=dream.strategy)
        found[name] = (float(np.abs(plain - ours).max()), ours)
    return found


def said() -> dict[str, Any]:
    """What is said of draws that are not those of one device."""
    torch.set_num_threads(1)
    heard = _Lines()
    logging.getLogger("dream").addHandler(heard)
    logging.getLogger("dream").setLevel(logging.INFO)
    found: dict[str, Any] = {}

    def hear(name: str) -> None:
        found[name], heard.lines = [*heard.lines], []

    train("dropout", block=dream.strategy)
    hear("dropout")
    torch.manual_seed(1)
    with dream.strategy() as strategy:
        rank = strategy.topology.rank
        model = nn.LSTM(8, 4, 2, dropout=0.5)
        for x, _ in DataLoader(data(), batch_size=BATCH):
            model(x)[0].mean().backward()
    hear("fused")
    alike = torch.rand(3).tolist()
    torch.manual_seed(1 + rank)
    with dream.strategy():
        model = MODELS["dropout"]()
        torch.optim.SGD(model.parameters())
        order = [y.tolist() for _, y in DataLoader(data(), batch_size=BATCH, shuffle=True)]
    hear("seeded_by_rank")
    with dream.strategy(randomness="local"):
        torch.manual_seed(1)
        model = MODELS["dropout"]()
        masks = []
        model[1].register_forward_hook(lambda *seen: masks.append(int((seen[2] != 0).sum())))
        for x, _ in DataLoader(data(), batch_size=BATCH):
            model(x).mean().backward()
    hear("local")
    with dream.strategy():
        torch.manual_seed(1)
        late = Late()
        model = torch.compile(late, backend="eager")
        torch.optim.SGD(model.parameters())
        for x, _ in DataLoader(data(), batch_size=BATCH):
            model(x).mean().backward()
            late.calls += 1
    hear("late")
    with dream.strategy():
        model = MODELS["dropout"]()
        for x, _ in DataLoader(data(), batch_size=15):
            torch.manual_seed(5)  # which is no draw
            model(x).mean().backward()
    hear("seeds in the loop")
    with dream.strategy():
        known()
    hear("known")
    with dream.strategy():
        model = MODELS["dropout"]()
        for x, _ in DataLoader(data(), batch_size=10, drop_last=True):
            model(noisy(x)).mean().backward()
    hear("kept")
    with dream.strategy():
        model = MODELS["dropout"]()
        for x, _ in DataLoader(data(), batch_size=10, drop_last=True):
            kept = torch.rand(1) > 0.1  # one for all rows
            rows = [row.flip(0) if torch.rand(()) < 0.5 else row for row in x]
            model(torch.stack(rows) * kept).mean().backward()
    hear("by row")
    with dream.strategy():
        model = MODELS["dropout"]()
        torch.optim.SGD(model.parameters())
        for _ in DataLoader(data(), batch_size=BATCH * (1 + rank)):
            pass
    hear("sizes")
    found["next"] = torch.rand(3).tolist()
    with dream.strategy():
        torch.manual_seed(1)
        model = MODELS["dropout"]()
        shuffled = DataLoader(data(), batch_size=BATCH, shuffle=True)
        passes = []
        for _ in range(4):
            for x, _ in shuffled:
                drawn = [torch.rand(()) for _ in x]  # more on one rank than on the other
                model(x * torch.stack(drawn)[:, None]).mean().backward()
                passes.append(float(drawn[0]))
    hear("passes")
    found["begun"] = [passes[place] for place in (3, 9)]  # those that ranks compare
    return {**found, "alike": alike, "order": order, "masks": masks}
