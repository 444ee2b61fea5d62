"""Loops with losses of every kind, as scripts have them, beside themselves without dream."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from sharding_models import CLASSES, WIDTH, WORDS, Reader, adamw, apart, momentum
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream

Figures = dict[str, Any]
SAMPLES, BATCH, EPOCHS = 17, 8, 1  # the last batch is of one sample


class Vae(nn.Module):
    """noise: whether the latent is drawn."""

    def __init__(self, *, noise: bool) -> None:
        super().__init__()
        self.encode = nn.Linear(12, WIDTH)
        self.mean, self.spread = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4)
        self.decode = nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 12))
        self.noise = noise

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = F.relu(self.encode(x))
        mean, spread = self.mean(hidden), self.spread(hidden)
        drawn = torch.randn_like(spread) if self.noise else torch.full_like(spread, 0.3)
        return self.decode(mean + drawn * torch.exp(0.5 * spread)), mean, spread


class Tagger(nn.Module):
    """A class for each word."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.words(x)
        return self.head(hidden + self.down(self.drop(F.gelu(self.up(hidden)))))


class Dropped(nn.Module):
    """Layers whose output is dropped from, or written to, as soon as it has come together."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.drop = nn.Embedding(WORDS, WIDTH), nn.Dropout(0.3)
        own, wide = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.mix = nn.Sequential(own, nn.ReLU(), wide, nn.ReLU(inplace=True))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.mix(self.drop(self.words(x)))).mean(dim=1))


def bounded() -> nn.Module:
    """A model with hooks on its gradients, some of which look at the whole of one."""
    model = Reader()
    model.head.weight.register_hook(lambda gradient: gradient / gradient.norm().clamp(min=0.1))
    model.blocks[0].down.weight.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    return model


def pictures() -> TensorDataset:
    draw = torch.Generator().manual_seed(5)
    return TensorDataset(torch.rand(SAMPLES, 12, generator=draw))


def tagged() -> TensorDataset:
    """Rows of words that end in padding, of a length of their own."""
    draw = torch.Generator().manual_seed(7)
    words = torch.randint(1, WORDS, (SAMPLES, 6), generator=draw)
    tags = words % CLASSES
    ends = torch.randint(1, 7, (SAMPLES, 1), generator=draw)
    tags[torch.arange(6) >= ends] = -100
    return TensorDataset(words, tags)


def classed() -> TensorDataset:
    words = tagged().tensors[0]
    return TensorDataset(words, words.sum(dim=1) % CLASSES)


def vae(model: nn.Module, optimizer: Any) -> list[float]:
    """PyTorch's own example: sums over samples and pixels."""
    told = []
    for (x,) in DataLoader(pictures(), batch_size=BATCH):
        optimizer.zero_grad()
        out, mean, spread = model(x)
        apart_ = F.binary_cross_entropy_with_logits(out, x, reduction="sum")
        divergence = -0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())
        loss = apart_ + divergence
        loss.backward()
        told.append(loss.item())
        optimizer.step()
    return told


def _loop(data: TensorDataset, loss_of: Callable[..., Any]) -> Callable[..., list[float]]:
    def loop(model: nn.Module, optimizer: Any) -> list[float]:
        told = []
        for x, y in DataLoader(data, batch_size=BATCH):
            optimizer.zero_grad()
            loss = loss_of(model(x), y, model)
            loss.backward()
            told.append(loss.item())
            optimizer.step()
        return told

    return loop


def _masked(out: torch.Tensor, y: torch.Tensor, _: nn.Module) -> torch.Tensor:
    mask = (y >= 0).float()
    each = F.cross_entropy(out.flatten(0, 1), y.clamp(min=0).flatten(), reduction="none")
    return (each * mask.flatten()).sum() / mask.sum()


def _penalised(out: torch.Tensor, y: torch.Tensor, model: nn.Module) -> torch.Tensor:
    penalty = 1e-2 * sum(p.square().sum() for p in model.parameters())
    return F.cross_entropy(out, y, reduction="sum") / 8 + penalty


_TOKENS = _loop(tagged(), lambda out, y, _: F.cross_entropy(out.flatten(0, 1), y.flatten()))
_CLASSES = _loop(classed(), lambda out, y, _: F.cross_entropy(out, y))


def two_loaders(model: nn.Module, optimizer: Any) -> list[float]:
    """Labelled and other samples side by side; one backward."""
    told = []
    first = DataLoader(classed(), batch_size=BATCH)
    second = DataLoader(TensorDataset(*(t[:11] for t in classed().tensors)), batch_size=5)
    for (x, y), (other, _) in zip(first, second, strict=False):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) + 0.1 * model(other).square().mean()
        loss.backward()
        told.append(loss.item())
        optimizer.step()
    return told


def plateau(model: nn.Module, optimizer: Any) -> list[float]:
    """A rate that falls by the loop's own loss."""
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    told = []
    for x, y in DataLoader(classed(), batch_size=BATCH):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step(loss)
        told.append(optimizer.param_groups[0]["lr"])
    return told


WEIGHTS = torch.tensor([0.2, 1.0, 2.0, 3.0])
SCRIPTS: dict[str, tuple[Callable[[], nn.Module], Callable[..., list[float]]]] = {
    "means": (Reader, _CLASSES),
    "vae": (lambda: Vae(noise=False), vae),
    "tokens": (Tagger, _TOKENS),
    "class_weights": (Reader, _loop(classed(), lambda o, y, _: F.cross_entropy(o, y, WEIGHTS))),
    "masked": (Tagger, _loop(tagged(), _masked)),
    "sum_and_penalty": (Reader, _loop(classed(), _penalised)),
    "two_loaders": (Reader, two_loaders),
    "plateau": (Reader, plateau),
    "noise": (lambda: Vae(noise=True), vae),
    "dropout": (lambda: Tagger(0.3), _TOKENS),
    "dropped": (Dropped, _CLASSES),
    "hooks": (bounded, _CLASSES),
}
TENSOR = {"split": "tensor"}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "mirrored": ("mirrored", {}),
    "zero=1": ("sharded", {"zero": 1}),
    "zero=2": ("sharded", {"zero": 2}),
    "zero=3": ("sharded", {}),
    "tensor": ("model_parallel", TENSOR),
    "data x tensor": ("hybrid", {**TENSOR, "data": 2, "model": 2}),
    "data": ("hybrid", {**TENSOR, "data": 2, "model": 1}),
}


def trained(script: str, make: Callable[..., Any], strategy: Any = None) -> Figures:
    """What a script ends with. strategy: None for the script as it is."""
    build, loop = SCRIPTS[script]
    torch.manual_seed(0)
    with nullcontext() if strategy is None else strategy:
        model = build()
        optimizer = make(model.parameters())
        told = [value for _ in range(EPOCHS) for value in loop(model, optimizer)]
        if strategy is None:
            state = {n: v.detach().numpy().copy() for n, v in model.state_dict().items()}
        else:
            state = strategy.full_state(model)
    return {"state": state, "told": told}


def _beside(script: str, make: Any, plain: Figures, way: str) -> Figures:
    """The largest differences under a way from the script as it is."""
    name, options = WAYS[way]
    try:
        ours = trained(script, make, dream.strategy(name, framework="torch", **options))
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    pairs = zip(ours["told"], plain["told"], strict=True)
    return {
        "state": max(apart(ours["state"], plain["state"]).values()),
        "told": max(abs(a - b) / max(1.0, abs(b)) for a, b in pairs),
    }


def _tokens(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(out.flatten(0, 1), y.flatten())


def _token_sum(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return 0.02 * F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum")


def _weighted(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(out.flatten(0, 1), y.flatten(), WEIGHTS)


STEPS: dict[str, Callable[..., torch.Tensor]] = {
    "step: tokens": _tokens,
    "step: token_sum": _token_sum,
    "step: weighted": _weighted,
    "step: masked": lambda out, y: _masked(out, y, nn.Identity()),
    "step: sum_by_batch": lambda out, y: _token_sum(out, y) / 0.7,
    "step: two_kinds": lambda out, y: _token_sum(out, y) + out.square().mean(),
}
STAGED: dict[str, tuple[str, dict[str, Any]]] = {
    **WAYS,
    "pipeline": ("model_parallel", {"split": "pipeline", "microbatches": 3}),
    "data x pipeline": ("hybrid", {"split": "pipeline", "data": 2, "model": 2}),
    "accumulated": ("model_parallel", {"split": "pipeline", "accumulate": 2}),
}


def stepped(loss: Callable[..., torch.Tensor], strategy: Any = None) -> Figures:
    """What the explicit step ends with, and beside it the plain loop."""
    torch.manual_seed(0)
    told = []
    with nullcontext() if strategy is None else strategy:
        model: Any = Tagger()
        optimizer: Any = momentum(model.parameters())
        batches = DataLoader(tagged(), batch_size=BATCH)
        if strategy is not None:
            model, optimizer, batches = strategy.prepare(model, optimizer, batches)
            step = strategy.train_step(model, loss, optimizer)
        for x, y in (batch for _ in range(EPOCHS) for batch in batches):
            if strategy is not None:
                told.append(float(step(x, y)))
                continue
            optimizer.zero_grad()
            value = loss(model(x), y)
            value.backward()
            optimizer.step()
            told.append(value.item())
        if strategy is not None:
            return {"state": strategy.full_state(model), "told": told}
    return {"state": {n: v.detach().numpy().copy() for n, v in model.state_dict().items()},
            "told": told}  # fmt: skip


def compared_steps(ways: list[str], steps: Iterable[str] = STEPS) -> Figures:
    """The same of explicit steps."""
    found: Figures = {}
    for what in steps:
        loss = STEPS[what]
        plain = stepped(loss)
        for way in ways:
            name, options = STAGED[way]
            try:
                ours = stepped(loss, dream.strategy(name, framework="torch", **options))
            except Exception as error:
                found[f"{what}: {way}"] = {"refused": f"{type(error).__name__}: {error}"}
                continue
            pairs = zip(ours["told"], plain["told"], strict=True)
            found[f"{what}: {way}"] = {
                "state": max(apart(ours["state"], plain["state"]).values()),
                "told": max(abs(a - b) / max(1.0, abs(b)) for a, b in pairs),
            }
    return found


def compared(ways: list[str], scripts: Iterable[str] = SCRIPTS) -> Figures:
    """The largest differences of every script under every way, from the script as it is."""
    warnings.filterwarnings("error", message=".*FakeTensor")  # what torch computes with for itself
    torch.set_num_threads(1)
    found: Figures = {}
    for script in scripts:
        make = adamw if script == "tokens" else momentum
        plain = trained(script, make)
        for way in ways:
            found[f"{script}: {way}"] = _beside(script, make, plain, way)
    return found


FEW = ("vae", "hooks")
FEW_STEPS = ("step: two_kinds",)
FURTHER_WAYS = ["zero=1", "zero=3", "tensor", "accumulated"]
"""What a loss is a mean over is read alike in all ways: these are held under each of them, the
others under one."""


def at_two() -> Figures:
    looped = compared(["zero=3"]) | compared(["zero=1", "tensor"], FEW)
    looped |= compared(["data"], ["hooks"])
    steps = compared_steps(["pipeline"])
    return looped | steps | compared_steps(FURTHER_WAYS, FEW_STEPS)


def others_at_two() -> Figures:
    looped = compared(["zero=1", "tensor"], [name for name in SCRIPTS if name not in FEW])
    others = [name for name in STEPS if name not in FEW_STEPS]
    return looped | compared_steps(FURTHER_WAYS, others)


def at_three() -> Figures:
    return compared(["zero=3"])


def at_four() -> Figures:
    return compared(["data x tensor", "zero=2", "zero=3"]) | compared_steps(["data x pipeline"])


JOBS = {"2": at_two, "2, others": others_at_two, "3": at_three, "4": at_four}
"""By the number of ranks."""


@cache
def found(job: str) -> list[Figures]:
    """Run the job once for all tests of this folder."""
    return dream.launch(JOBS[job], n=int(job[0]), framework="torch", timeout=900)
