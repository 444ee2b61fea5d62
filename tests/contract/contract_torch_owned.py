"""Steps that a strategy owns: what untouched loops show elsewhere, through `train_step`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from contract_case import WITH_DREAM, Env, Figures, refusal
from contract_torch_kit import (
    CASES,
    EPOCHS,
    LONG,
    Indexed,
    Net,
    adamw,
    loader,
    momentum,
    parameters,
)
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream


class _Blocks(nn.Module):
    """Tokens, attention with a residual, and a head: values that skip layers."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(4, 8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x.unflatten(1, (2, 4)))
        x = self.norm(x + self.attend(x, x, x, need_weights=False)[0])
        return self.head(x.mean(dim=1))


def _steps(
    strategy: dream.Strategy, model: Any, optimizer: Any, batches: Iterable[Any], epochs: int
) -> list[float]:
    step = strategy.train_step(model, F.cross_entropy, optimizer)
    return [float(step(*batch)) for _ in range(epochs) for batch in batches]


def _owned(
    env: Env, build: Callable[[], nn.Module], make: Callable[..., Any], samples: int, **data: Any
) -> Figures:
    with env.block() as strategy:
        model = build()
        start = copy.deepcopy(model) if env.mode == "single" else None
        optimizer = make(model.parameters())
        batches = loader(samples, **data)
        model, optimizer, batches = strategy.prepare(model, optimizer, batches)
        values = _steps(strategy, model, optimizer, batches, LONG)
        found = parameters(model)
    figures: Figures = {"parameters": found, "values": values}
    if start is not None:
        figures["in_parts"] = {parts: _in_parts(start, make, samples, parts) for parts in (2, 4, 8)}
    return figures


def _in_parts(start: nn.Module, make: Callable[..., Any], samples: int, parts: int) -> Any:
    """One device's own training with each batch summed in as many parts: the noise's size."""
    model = copy.deepcopy(start)
    optimizer = make(model.parameters())
    for _ in range(LONG):
        for x, y in loader(samples):
            optimizer.zero_grad()
            for part in range(parts):
                share = len(y[part::parts]) / len(y)
                if share:
                    (F.cross_entropy(model(x[part::parts]), y[part::parts]) * share).backward()
            optimizer.step()
    return parameters(model)


@CASES.add(*WITH_DREAM)
def owned_attention_momentum(env: Env) -> Figures:
    return _owned(env, _Blocks, momentum, 61)


@CASES.add(*WITH_DREAM)
def owned_attention_adamw(env: Env) -> Figures:
    return _owned(env, _Blocks, adamw, 61)


@CASES.add(*WITH_DREAM)
def owned_even_adamw(env: Env) -> Figures:
    return _owned(env, _smooth, adamw, 64)


@CASES.add(*WITH_DREAM)
def owned_shuffled_momentum(env: Env) -> Figures:
    return _owned(env, _deep, momentum, 61, shuffle=True)


@CASES.add(*WITH_DREAM)
def owned_rank_dependent_initial_weights(env: Env) -> Figures:
    torch.manual_seed(100 + env.rank)
    return _owned(env, _deep, momentum, 49)


def _deep() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Linear(16, 16),
        nn.Tanh(), nn.Linear(16, 4),
    )  # fmt: skip


def _smooth() -> nn.Module:
    """One whose gradients Adam has no noise to amplify in."""
    return nn.Sequential(
        nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4)
    )  # fmt: skip


@CASES.add(*WITH_DREAM)
def owned_clipping(env: Env) -> Figures:
    """The global norm, over all stages; `single` has no such option, and clips by hand."""
    if env.mode == "cell":
        with env.block(clip_norm=0.05) as strategy:
            return _prepared_outside(strategy)
    with env.block():
        model = _deep()
        optimizer = momentum(model.parameters())
        for _ in range(EPOCHS):
            for x, y in loader(61):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)
                optimizer.step()
    return {"parameters": parameters(model)}


def _prepared_outside(strategy: dream.Strategy) -> Figures:
    model = _deep()
    groups = [{"params": [p], "lr": 0.1} for p in model.parameters()]
    optimizer = torch.optim.SGD(groups, lr=9.0, momentum=0.9)
    model, optimizer, batches = strategy.prepare(model, optimizer, loader(61))
    _steps(strategy, model, optimizer, batches, EPOCHS)
    return {"parameters": parameters(model)}


@CASES.add(*WITH_DREAM)
def owned_model_made_before(env: Env) -> Figures:
    model = _smooth()
    optimizer = adamw(model.parameters())
    batches = loader(49)
    with env.block() as strategy:
        prepared = strategy.prepare(model, optimizer, batches)
        _steps(strategy, *prepared, epochs=2)
    _steps(strategy, *prepared, epochs=EPOCHS - 2)
    return {"parameters": parameters(model), "alone": prepared[0] is model}


@CASES.add(*WITH_DREAM)
def owned_weight_with_counts_of_zero(env: Env) -> Figures:
    """Tokens that count, of which some microbatches and some shares have none."""
    draw = np.random.default_rng(2)
    tokens = torch.from_numpy(draw.normal(size=(49, 6, 8)).astype(np.float32))
    targets = torch.from_numpy(draw.integers(0, 4, size=(49, 6)))
    lengths = torch.from_numpy(draw.integers(0, 7, size=49))
    lengths[16:24] = 0  # microbatches
    lengths[33:48:2] = 0  # the second copy's share
    targets[torch.arange(6) >= lengths[:, None]] = -100

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=-100)

    def count(_: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (target != -100).sum()

    with env.block() as strategy:
        model = _smooth()
        optimizer = momentum(model.parameters())
        batches = DataLoader(TensorDataset(tokens, targets), batch_size=16)
        model, optimizer, batches = strategy.prepare(model, optimizer, batches)
        step = strategy.train_step(model, loss, optimizer, weight=count)
        values = [float(step(*batch)) for _ in range(EPOCHS) for batch in batches]
        return {"parameters": parameters(model), "values": values}


@CASES.add(*WITH_DREAM)
def owned_evaluation(env: Env) -> Figures:
    """strategy.evaluate, and a loop by hand with gradients off, between epochs of steps."""

    def right(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output.argmax(1) == target).double()

    results: list[Any] = []
    with env.block() as strategy:
        model = _deep()
        optimizer = momentum(model.parameters())
        model, optimizer, training = strategy.prepare(model, optimizer, loader(61))
        for _ in range(2):
            _steps(strategy, model, optimizer, training, 1)
            shared = strategy.evaluate(model, loader(49), {"right": right})
            with torch.no_grad():
                total, indices = 0.0, []
                for index, x, y in DataLoader(Indexed(23), batch_size=16):
                    indices += index.tolist()
                    total += float(F.cross_entropy(model(x), y, reduction="sum"))
            results.append((shared["right"], indices, total))
        found = parameters(model)
    return {"parameters": found, "results": results, "training": model.training}


@CASES.add("cell")
def owned_refusals(env: Env) -> Figures:
    """What a pipeline cannot do is told, on every rank."""
    tied = _deep()
    tied[6] = nn.Linear(16, 16)
    tied[6].weight = tied[2].weight
    with env.block() as strategy:
        called = Net()
        norm = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
        foreign = momentum(Net().parameters())
        prepared = strategy.prepare(_deep())
        return {
            "called": refusal(lambda: called(torch.ones(2, 8))),
            "prepared": refusal(lambda: prepared(torch.ones(2, 8))),
            "norm": refusal(lambda: strategy.prepare(norm)),
            "tied": refusal(lambda: _cut_between(env, tied)),
            "foreign": refusal(lambda: strategy.prepare(foreign)),
            "loss": refusal(lambda: strategy.weigh(torch.ones(()), 3)),
        }


def _cut_between(env: Env, model: nn.Module) -> None:
    looped = "interleaved" in env.cell.options
    count = env.ranks // env.replicas * (2 if looped else 1)
    env.strategy(stages=["4"] if count == 2 else ["1", "4", "5"]).prepare(model)
