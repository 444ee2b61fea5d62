"""The explicit form, counts of unequal things, the communicator and the generators."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from contract_case import EVERYWHERE, WITH_DREAM, Env, Figures, refusal
from contract_torch_kit import CASES, EPOCHS, Net, adamw, loader, momentum, parameters
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def _explicit(env: Env, make: Callable[..., Any], samples: int) -> Figures:
    """The last rank reads each value at once and alone, the others at the end."""
    values: list[Any] = []
    with env.block() as strategy:
        model = Net()
        optimizer = make(model.parameters())
        model, optimizer, batches = strategy.prepare(model, optimizer, loader(samples))
        step = strategy.train_step(model, F.cross_entropy, optimizer)
        for _ in range(EPOCHS):
            for batch in batches:
                value = step(*batch)
                values.append(float(value) if env.last else value)
    shapes = {np.shape(value) for value in values}
    return {
        "parameters": parameters(model),
        "values": [float(value) for value in values],
        "shapes": shapes,
    }


@CASES.add(*WITH_DREAM)
def step_momentum(env: Env) -> Figures:
    return _explicit(env, momentum, 61)


@CASES.add(*WITH_DREAM)
def step_adamw_rank_without_sample(env: Env) -> Figures:
    return _explicit(env, adamw, 49)


@CASES.add(*WITH_DREAM)
def step_and_loop_in_turn(env: Env) -> Figures:
    """The explicit step and an untouched loop on one model."""
    values: list[float] = []
    with env.block() as strategy:
        model = Net()
        optimizer = momentum(model.parameters())
        step = strategy.train_step(model, F.cross_entropy, optimizer)
        for _ in range(EPOCHS):
            for index, (x, y) in enumerate(loader(49)):
                if index % 2:
                    values.append(float(step(x, y)))
                    continue
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
    return {"parameters": parameters(model), "values": values}


def sentences(count: int, *, hollow: bool) -> TensorDataset:
    """Rows of 6 tokens of which the first few count. hollow: the samples that the second rank
    gets have none that counts."""
    draw = np.random.default_rng(2)
    tokens = torch.from_numpy(draw.normal(size=(count, 6, 8)).astype(np.float32))
    targets = torch.from_numpy(draw.integers(0, 4, size=(count, 6)))
    lengths = torch.from_numpy(draw.integers(1, 7, size=count))
    if hollow:
        for replicas in (2, 3):
            rows = torch.arange(count) % 16 % replicas == 1
            lengths[rows & (torch.arange(count) // 16 == replicas - 2)] = 0
    targets[torch.arange(6) >= lengths[:, None]] = -100
    return TensorDataset(tokens, targets)


def token_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The mean over the tokens that count."""
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=-100)


def tokens(_: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (target != -100).sum()


def _weighted_step(env: Env, *, hollow: bool) -> Figures:
    with env.block() as strategy:
        model = Net()
        optimizer = momentum(model.parameters())
        step = strategy.train_step(model, token_loss, optimizer, weight=tokens)
        batches = DataLoader(sentences(49, hollow=hollow), batch_size=16)
        values = [float(step(*batch)) for _ in range(EPOCHS) for batch in batches]
    return {"parameters": parameters(model), "values": values}


@CASES.add(*WITH_DREAM)
def step_weighted_by_tokens(env: Env) -> Figures:
    return _weighted_step(env, hollow=False)


@CASES.add(*WITH_DREAM)
def step_weighted_with_a_count_of_zero(env: Env) -> Figures:
    return _weighted_step(env, hollow=True)


def _weighed_loop(env: Env, *, hollow: bool) -> Figures:
    with env.block() as strategy:
        model = Net()
        optimizer = momentum(model.parameters())
        for _ in range(EPOCHS):
            for x, y in DataLoader(sentences(49, hollow=hollow), batch_size=16):
                optimizer.zero_grad()
                loss = token_loss(model(x), y)
                if strategy is not None:
                    loss = strategy.weigh(loss, tokens(x, y))
                loss.backward()
                optimizer.step()
    return {"parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def loop_weighed_by_tokens(env: Env) -> Figures:
    return _weighed_loop(env, hollow=False)


@CASES.add(*EVERYWHERE)
def loop_weighed_with_a_count_of_zero(env: Env) -> Figures:
    return _weighed_loop(env, hollow=True)


class _Noisy(nn.Module):
    """Remembers what its dropout drew for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.masks: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = F.dropout(torch.ones_like(x), training=self.training)
        self.masks.append(mask.tolist())
        return (x * self.scale * mask).sum(dim=1)


@CASES.add(*EVERYWHERE)
def dropout_masks(env: Env) -> Figures:
    """By the first call, and by prepare. Also NumPy's and Python's generators."""
    import random

    figures: Figures = {}
    for way in ("called", "prepared"):
        torch.manual_seed(9)
        np.random.seed(9)
        random.seed(9)
        with env.block() as strategy:
            model = _Noisy()
            momentum(model.parameters())
            if way == "prepared":
                _ = strategy and strategy.prepare(model)
            else:
                model(torch.ones(2, 8))
                model.masks.clear()
            for x, _ in loader(61):
                model(x).mean().backward()
        figures[way] = model.masks
        figures[f"{way}_others"] = [float(np.random.rand()), random.random()]
    return figures


def _exchange(communicator: Any, kind: Callable[[Any], Any], rank: int) -> Figures:
    base = np.arange(6, dtype=np.float32).reshape(2, 3) + 10.0 * rank
    given = [kind(base), kind(base.astype(np.float64)), kind(base.astype(np.int64))]
    results: Figures = {
        op: [np.asarray(communicator.all_reduce(x, op=op)) for x in given]
        for op in ("sum", "min", "max")
    }
    results["mean"] = [np.asarray(communicator.all_reduce(x)) for x in given[:2]]
    results["list"] = [np.asarray(x) for x in communicator.all_reduce(given, op="sum")]
    results["point"] = np.asarray(communicator.all_reduce(kind(np.float32(rank)), op="sum"))
    last = communicator.world_size - 1
    results["broadcast"] = [np.asarray(communicator.broadcast(x)) for x in given]
    results["broadcast_last"] = [np.asarray(x) for x in communicator.broadcast(given, root=last)]
    results["unchanged"] = all(np.array_equal(np.asarray(x), base) for x in given)
    kept = [communicator.all_reduce(x, op="max") for x in given]
    results["kinds"] = [type(new) is type(x) for new, x in zip(kept, given, strict=True)]
    return results


@CASES.add(*WITH_DREAM)
def communicator(env: Env) -> Figures:
    with env.block() as strategy:
        talk = strategy.communicator
        ranks = talk.rank, talk.world_size
        seen = [strategy.topology.rank, strategy.topology.world_size]
        seen.append(strategy.topology.num_replicas)
        figures = {
            "tensors": _exchange(talk, torch.as_tensor, env.rank),
            "arrays": _exchange(talk, np.asarray, env.rank),
        }
        time.sleep(0.3 * (env.rank == 0))
        before = time.monotonic()
        talk.barrier()
        after = time.monotonic()
        mean_of_integers = refusal(lambda: talk.all_reduce(torch.ones(2, dtype=torch.int64)))
        unknown_op = refusal(lambda: talk.all_reduce(torch.ones(2), op="median"))
        talk.barrier()
    return figures | {
        "ranks": ranks,
        "topology": seen,
        "barrier": (before, after),
        "mean_of_integers": mean_of_integers,
        "unknown_op": unknown_op,
    }
