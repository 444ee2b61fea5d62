"""What each rank of a job finds whose processes have a copy of a model on two devices each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from sharding_models import momentum, refused
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream

LAYERS: dict[str, Any] = {"split": "layers", "devices": 2}
_PLACE = {"left": 0, "right": 1, "head": 1}
_came = threading.Event()
Between = Callable[[nn.Module], object]


class Noted(nn.Linear):
    """Notes which threads have called it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.threads = set[str]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.threads.add(threading.current_thread().name.rpartition("_")[0])
        return super().forward(x)


class Waits(nn.Module):
    """Lets the other branch draw first, where that is not behind it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _came.wait(0.02)
        _came.clear()
        return x


class Comes(nn.Module):
    """Says that its branch has drawn."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _came.set()
        return x


class Branches(nn.Module):
    """Two that know nothing of each other, and both draw; a norm that the ranks share."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(Noted(4, 8), nn.BatchNorm1d(8), Waits(), nn.Dropout(0.3))
        self.right = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), Comes())
        self.head = Noted(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.left(x) + self.right(x))


class Noise(nn.Module):
    """Draws, and does not look like it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


class Noisy(Branches):
    def __init__(self) -> None:
        super().__init__()
        self.left[3], self.right[2] = Noise(), Noise()


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 8), nn.Tanh(),
                         nn.Linear(8, 3))  # fmt: skip


def _batches() -> DataLoader[Any]:
    x = torch.randn(29, 4, generator=torch.Generator().manual_seed(3))
    return DataLoader(TensorDataset(x, torch.arange(29) % 3), batch_size=16, shuffle=True)


def _loop(model: nn.Module, *, penalty: float = 0.0, between: Between = lambda _: None) -> None:
    optimizer = momentum(model.parameters())
    for _ in range(2):
        for x, y in _batches():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            if penalty:
                loss = loss + penalty * sum(p.square().sum() for p in model.parameters())
            loss.backward()
            between(model)
            optimizer.step()


def _steps(model: nn.Module, strategy: dream.Strategy) -> None:
    step = strategy.train_step(model, F.cross_entropy, momentum(model.parameters()))
    for _ in range(2):
        for x, y in _batches():
            step(x, y)


def _clip(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def _alone(make: Callable[[], nn.Module], run: Callable[[nn.Module], None]) -> dict[str, Any]:
    torch.manual_seed(0)
    model = make()
    run(model)
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def _gap(make: Callable[[], nn.Module], run: Any, *, steps: bool = False, **options: Any) -> float:
    """How far the ranks end from plain torch. steps: by the explicit step."""
    one = _alone(make, run)
    torch.manual_seed(0)
    with dream.strategy("model_parallel", framework="torch", **LAYERS, **options) as strategy:
        model = make()
        _steps(model, strategy) if steps else run(model)
        ours = strategy.full_state(model)
    return max(float(abs(ours[name] - one[name]).max()) for name in one)


def exact() -> dict[str, float]:
    clipped = partial(_loop, between=_clip)
    return {
        "loop": _gap(chain, _loop),
        "step": _gap(chain, _loop, steps=True),
        "penalty": _gap(chain, partial(_loop, penalty=0.01)),
        "clipped by hand": _gap(chain, clipped),
        "accumulate=": _gap(chain, _loop, accumulate=2),
        "recompute=": _gap(chain, _loop, recompute=True),
        "branches": _gap(Branches, _loop, place=_PLACE),
        "branches, noise": _gap(Noisy, _loop, place=_PLACE),
        "branches, step": _gap(Branches, _loop, steps=True, place=_PLACE),
        "branches, recompute=": _gap(Branches, _loop, recompute=True, place=_PLACE),
    }


def threads() -> list[set[str]]:
    """Where the first and the last layer ran."""
    with dream.strategy("model_parallel", framework="torch", **LAYERS, place=_PLACE):
        model = Branches()
        _loop(model)
    return [model.left[0].threads, model.head.threads]


def kept(folder: str) -> float:
    """Saved by these ranks and gone on from."""
    one = _alone(chain, lambda model: [_loop(model), _loop(model)])
    everything: dict[str, Any] = {}
    for first in (True, False):
        torch.manual_seed(0 if first else 7)
        with dream.strategy("model_parallel", framework="torch", **LAYERS) as strategy:
            model = chain()
            everything = {"model": model, "optimizer": momentum(model.parameters())}
            if not first:
                strategy.load(folder, **everything)
            _loop(model)
            strategy.save(folder, step=1 + (not first), **everything).wait()
            ours = strategy.full_state(model)
    return max(float(abs(ours[name] - one[name]).max()) for name in one)


def said() -> dict[str, str]:
    def made(**options: Any) -> object:
        return dream.strategy("model_parallel", framework="torch", **LAYERS, **options).__enter__()

    return {
        "data": refused(lambda: made(data=3)),
        "devices": refused(lambda: made(model=3)),
        "accumulate": refused(lambda: made(accumulate="auto")),
    }


def in_one_process() -> dict[str, float]:
    torch.set_num_threads(1)
    return {make.__name__: _gap(make, _loop, place=_PLACE) for make in (Branches, Noisy)}


def everything(folder: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    return {"exact": exact(), "threads": threads(), "kept": kept(folder), "said": said()}
