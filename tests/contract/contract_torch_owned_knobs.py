"""The knobs where a strategy owns the step: a pipeline's rounds of microbatches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from contract_case import WITH_DREAM, Env, Figures, refusal
from contract_heard import heard
from contract_torch_explicit import sentences, token_loss, tokens
from contract_torch_kit import BATCH, CASES, EPOCHS, arrays, loader, parameters
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

Data = Callable[[], DataLoader[Any]]


class _Block(nn.Module):
    """Counts how often it is computed."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(drop))
        self.times = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.times += 1
        return x + self.inner(x)


def _tower(drop: float = 0.0) -> nn.Sequential:
    blocks = (_Block(drop) for _ in range(8))
    return nn.Sequential(nn.Linear(8, 16), *blocks, nn.Linear(16, 4))


def _trained(
    env: Env,
    knobs: Figures,
    data: Data,
    *,
    loss: Any = F.cross_entropy,
    drop: float = 0.0,
    epochs: int = EPOCHS,
    **options: Any,
) -> Figures:
    torch.manual_seed(0)
    with env.block(knobs=knobs) as strategy:
        model = _tower(drop).double() if knobs.get("precision") == "O0" else _tower(drop)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        model, optimizer, batches = strategy.prepare(model, optimizer, data())
        step = strategy.train_step(model, loss, optimizer, **options)
        values = [float(step(*batch)) for _ in range(epochs) for batch in batches]
        found = parameters(model)
        times = [block.times for block in [*model.children()][1:-1]]
    held = {str(p.grad.dtype) for p in model.parameters() if p.grad is not None}
    return {"parameters": found, "values": values, "times": times, "held": sorted(held)}


def _beside(env: Env, knobs: Figures, plain: Figures, data: Data, **more: Any) -> Figures:
    """The cell with knobs; one device with `plain` ones, and as "other" with the same as the
    cell."""
    if env.mode == "cell":
        return _trained(env, knobs, data, **more)
    return {
        **_trained(env, plain, data, **more),
        "other": _trained(env, knobs, data, **more)["parameters"],
    }


@CASES.add(*WITH_DREAM)
def owned_accumulated(env: Env) -> Figures:
    """An uneven batch at the end, of which some ranks may have no sample."""
    return _beside(env, {"accumulate": 3}, {}, lambda: loader(49))


@CASES.add(*WITH_DREAM)
def owned_accumulated_by_tokens(env: Env) -> Figures:
    """Micro-batches of unequal weights, some of none, whose global gradient is clipped."""
    data = sentences(49, hollow=True)
    clipped: Figures = {"clip_norm": 0.05}
    return _beside(
        env,
        {"accumulate": 4, **clipped},
        clipped,
        lambda: DataLoader(data, batch_size=BATCH),
        loss=token_loss,
        weight=tokens,
    )


@CASES.add(*WITH_DREAM)
def owned_clip_value(env: Env) -> Figures:
    return _beside(env, {"clip_value": 0.01}, {"clip_value": 0.01}, lambda: loader(61))


def _in_precision(name: str) -> Callable[[Env], Figures]:
    def run(env: Env) -> Figures:
        here: Figures = {"precision": name}
        if env.mode == "cell":
            return _trained(env, here, lambda: loader(61))
        found = _beside(env, {**here, "accumulate": 2}, here, lambda: loader(61))
        return {**found, "whole": _trained(env, {}, lambda: loader(61))["parameters"]}

    return run


for _name in ("bfloat16", "float16", "O0", "O2", "O3"):
    _case = _in_precision(_name)
    _case.__name__ = f"owned_in_{_name}"
    CASES.add(*WITH_DREAM)(_case)


@CASES.add(*WITH_DREAM)
def owned_overflow(env: Env) -> Figures:
    """One sample of the second batch is too large for float16, in the stage that it meets."""
    x, y = arrays(64)
    x[20] = 1e30
    data = TensorDataset(x, y)
    batches = lambda: DataLoader(data, batch_size=BATCH)  # noqa: E731
    with heard("overflowed") as lines:
        found = _trained(env, {"precision": "float16"}, batches, epochs=1)
    return {"parameters": found["parameters"], "lines": lines}


HOW: dict[str, Any] = {"none": False, "all": True, "named": ["2", "7"]}


def _in_chains() -> nn.Sequential:
    return nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 4))


@CASES.add(*WITH_DREAM)
def owned_recomputed(env: Env) -> Figures:
    """Each way beside none at all, in this rank, with dropout."""
    data = lambda: loader(61)  # noqa: E731
    return {
        name: _trained(env, {"recompute": how}, data, drop=0.3, epochs=2)
        for name, how in HOW.items()
    }


@CASES.add("cell")
def owned_knobs_refused(env: Env) -> Figures:
    def made(**knobs: Any) -> Figures:
        return refusal(lambda: _trained(env, knobs, lambda: loader(32), epochs=1))

    return {
        "sqrt": made(recompute="sqrt"),
        "norm": made(sync_batch_norm=True),
        "name": made(recompute=["nine"]),
        "followed": refusal(lambda: env.strategy(recompute=["0"]).prepare(_in_chains())),
    }
