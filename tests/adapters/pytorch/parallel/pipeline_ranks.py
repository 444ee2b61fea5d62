"""What each rank of a pipeline does and finds. Usage: pipeline_ranks.py FOLDER"""

from __future__ import annotations

import gc
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream

Figures = dict[str, Any]
EPOCHS, BATCH = 3, 16


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.attend = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.attend(self.norm(x)).chunk(3, dim=-1)
        return x + self.mix(F.scaled_dot_product_attention(q, k, v, is_causal=True))


class Reader(nn.Module):
    """Tokens with positions, blocks, and lines of the user's own between the layers."""

    def __init__(self, blocks: int = 4, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.position = nn.Parameter(torch.randn(1, 6, width) * 0.1)
        self.blocks = nn.ModuleList([Block(width) for _ in range(blocks)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 5)
        self.heat = 1.0

    def forward(self, ids: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        batch, length = ids.shape
        first = x = self.embed(ids) + self.position[:, :length]
        for block in self.blocks:
            x = block(x)
        x = self.norm(x + first)
        return self.head(x.view(batch, length, -1).mean(dim=1)) * (self.heat * scale)


def data(samples: int = 29) -> TensorDataset:
    draw = np.random.default_rng(3)
    ids = torch.from_numpy(draw.integers(0, 11, size=(samples, 6)))
    return TensorDataset(ids, (ids.sum(dim=1) * 7) % 5)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def alone(build: Callable[[], nn.Module], make: Any, between: Any = None, parts: int = 1) -> Any:
    """One device; the batch summed in parts."""
    torch.manual_seed(0)
    model = build()
    optimizer = make(model.parameters())
    for _ in range(EPOCHS):
        for x, y in DataLoader(data(), batch_size=BATCH):
            optimizer.zero_grad()
            for part in range(parts):
                a, b = x[part::parts], y[part::parts]
                if len(b):
                    (F.cross_entropy(model(a), b) * (len(b) / len(y))).backward()
            optimizer.step()
            if between is not None:
                between(model)
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def staged(
    build: Callable[[], nn.Module], make: Any, name: str, between: Any = None, **options: Any
) -> Any:
    with dream.strategy(name, framework="torch", **options) as strategy:
        torch.manual_seed(0)
        model = build()
        optimizer = make(model.parameters())
        batches = DataLoader(data(), batch_size=BATCH)
        model, optimizer, batches = strategy.prepare(model, optimizer, batches)
        step = strategy.train_step(model, F.cross_entropy, optimizer)
        for _ in range(EPOCHS):
            for batch in batches:
                step(*batch)
                if between is not None:
                    between(model)
        return strategy.full_state(model)


def apart(ours: Any, theirs: Any) -> dict[str, float]:
    assert list(ours) == list(theirs)
    return {name: float(np.abs(value - theirs[name]).max()) for name, value in ours.items()}


def exact(ranks: int) -> Figures:
    """How far from one device; by more than it is from itself in parts, where Adam amplifies."""
    ways: list[tuple[str, dict[str, Any]]]
    if ranks == 4:
        ways = [
            ("model_parallel", {"schedule": "1f1b"}),
            ("hybrid", {"microbatches": 3}),
            ("hybrid", {"schedule": "interleaved", "data": 2, "model": 2}),
        ]
    else:
        ways = [
            ("model_parallel", {"schedule": "gpipe", "microbatches": 1}),
            ("model_parallel", {"schedule": "gpipe", "microbatches": 5}),
            ("model_parallel", {"schedule": "1f1b", "microbatches": 5}),
            ("model_parallel", {"schedule": "interleaved"}),
            ("model_parallel", {"stages": ["blocks.1"]}),
        ]
    found: Figures = {}
    for make in (momentum, adamw):
        one = alone(Reader, make)
        bounds = dict.fromkeys(one, 1e-6)
        if make is adamw:
            noise = [apart(alone(Reader, make, parts=parts), one) for parts in (2, 4, 8)]
            bounds = {name: max(1e-6, 3 * max(n[name] for n in noise)) for name in one}
        for name, options in ways:
            off = apart(staged(Reader, make, name, **options), one)
            over = {key: value for key, value in off.items() if value > bounds[key]}
            found[f"{make.__name__} {name} {options}"] = over
    return found


def numbers_between_layers(_: int) -> Figures:
    """What the forward reads besides tensors changes on the way; layers that are not trained."""

    def warm(model: Any) -> None:
        model.heat += 0.05

    def frozen() -> nn.Module:
        model = Reader()
        for part in (model.embed, model.blocks[0]):
            part.requires_grad_(False)
        model.position.requires_grad_(False)
        return model

    heat = staged(Reader, momentum, "model_parallel", warm)
    still = staged(frozen, momentum, "model_parallel")
    return {
        "heat": max(apart(heat, alone(Reader, momentum, warm)).values()),
        "frozen": max(apart(still, alone(frozen, momentum)).values()),
    }


def memory(_: int) -> Figures:
    """Bytes of tensors alive after two steps, beside what one device has."""

    def build() -> nn.Module:
        return nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))

    x, y = torch.randn(8, 256), torch.arange(8)
    empty = _alive()
    one = build()
    optimizer: Any = torch.optim.AdamW(one.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(one(x), y).backward()
        optimizer.step()
    whole = _alive() - empty
    del one, optimizer
    before = _alive()
    with dream.strategy("model_parallel", framework="torch", microbatches=4) as strategy:
        model = build()
        optimizer = torch.optim.AdamW(model.parameters())
        built = _alive() - before
        model, optimizer = strategy.prepare(model, optimizer)
        kept = _alive() - before
        step = strategy.train_step(model, F.cross_entropy, optimizer)
        for _ in range(2):
            step(x, y)
        own = _alive() - before
    groups = [len(group["params"]) for group in optimizer.param_groups]
    return {"whole": whole, "built": built, "kept": kept, "own": own, "groups": groups}


def _alive() -> int:
    """Bytes of every tensor's memory that the process holds."""
    gc.collect()
    found: dict[int, int] = {}
    for item in gc.get_objects():
        if issubclass(type(item), torch.Tensor):
            for tensor in (item, item.grad if item.is_leaf else None):
                if tensor is not None and not tensor.is_meta:
                    storage = tensor.untyped_storage()
                    found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


class Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.1)
        return x * self.weight


def balance(_: int) -> Figures:
    """The layers that this rank holds."""

    def build() -> nn.Module:
        layers = [nn.Linear(8, 8), nn.Linear(8, 400), nn.Linear(400, 8), Slow(), nn.Linear(8, 5)]
        return nn.Sequential(*layers)

    batches = DataLoader(TensorDataset(torch.randn(32, 8), torch.arange(32) % 5), batch_size=32)
    found: Figures = {}
    for way in ("parameters", "time"):
        strategy = dream.strategy("model_parallel", framework="torch", balance=way)
        model, _ = strategy.prepare(build(), batches)
        found[way] = [i for i, layer in enumerate(model) if not next(layer.parameters()).is_meta]
    return found


class Branches(nn.Module):
    """Goes one way or another by the values it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x)) if x.sum() > 0 else self.b(x)


class Noisy(Branches):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x) + torch.randn(8))


class Learned(nn.Module):
    """A loss that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output * self.scale, target)


def refusals(_: int) -> Figures:
    def pipeline(**options: Any) -> dream.Strategy:
        return dream.strategy("model_parallel", framework="torch", **options)

    def deep() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 5))

    x, y = torch.ones(8, 8), torch.arange(8) % 5
    acts: dict[str, Callable[[], object]] = {
        "name": lambda: pipeline(stages=["layer3"]).prepare(deep()),
        "order": lambda: pipeline(stages=["0"]).prepare(deep()),
        "count": lambda: pipeline(stages=3).prepare(deep()),
        "looped": lambda: pipeline(schedule="interleaved", stages=2).prepare(deep()),
        "few": lambda: pipeline(microbatches=1).prepare(deep()),
        "many": lambda: _stepped(pipeline(microbatches=9), deep(), F.cross_entropy, x, y),
        "timed": lambda: pipeline(balance="time").prepare(deep()),
        "branches": lambda: pipeline().prepare(Branches()),
        "noisy": lambda: pipeline().prepare(Noisy()),
        "one": lambda: pipeline().prepare(nn.Sequential(nn.Linear(8, 5))),
        "search": lambda: _searched(pipeline(), deep()),
        "loss": lambda: _stepped(pipeline(), deep(), Learned(), x, y),
        "meta": lambda: pipeline().prepare(deep().to("meta")),
        "rows": lambda: _stepped(pipeline(), deep(), F.cross_entropy, x, y[:4]),
        "mesh": lambda: pipeline(data=2, model=2).prepare(deep()),
    }
    return {name: _refused(act) for name, act in acts.items()}


def _stepped(strategy: dream.Strategy, model: nn.Module, loss: Any, *batch: torch.Tensor) -> None:
    optimizer = momentum(model.parameters())
    strategy.prepare(model, optimizer)
    strategy.train_step(model, loss, optimizer)(*batch)


def _searched(strategy: dream.Strategy, model: nn.Module) -> None:
    strategy.prepare(model, torch.optim.LBFGS(model.parameters()))


def _refused(act: Callable[[], object]) -> tuple[str, str]:
    try:
        act()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", "nothing was raised"


CASES = {
    2: (exact, numbers_between_layers, memory, balance, refusals),
    4: (exact,),
}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    place = dream.strategy("mirrored", framework="torch").topology
    found = {case.__name__: case(place.world_size) for case in CASES[place.world_size]}
    (folder / f"{place.rank}.pickle").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
