"""Bad input gets a clear error, on every rank."""

from __future__ import annotations

from typing import Any

import torch
from contract_case import Env, Figures, refusal
from contract_torch_kit import (
    CASES,
    Indexed,
    Net,
    adamw,
    loader,
    momentum,
    parameters,
    samples_of,
    train,
)
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler

import dream


@CASES.add("cell")
def distributed_sampler(env: Env) -> Figures:
    data = Indexed(61)
    sampler: Any = DistributedSampler(data, num_replicas=env.ranks, rank=env.rank)
    with env.block():
        batches = DataLoader(data, batch_size=16, sampler=sampler)
        return {"seen": [int(index) for batch in batches for index in batch[0]]}


@CASES.add("cell")
def batch_smaller_than_the_replicas(env: Env) -> Figures:
    with env.block():
        return refusal(lambda: DataLoader(Indexed(61), batch_size=env.replicas - 1))


class _Named(nn.Module):
    def __init__(self, name: str, size: int, dtype: torch.dtype, more: bool) -> None:
        super().__init__()
        self.first = nn.Linear(8, 3)
        self.register_parameter(name, nn.Parameter(torch.zeros(size, dtype=dtype)))
        if more:
            self.more = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x)


@CASES.add("cell")
def ranks_that_built_different_models(env: Env) -> Figures:
    """The last rank differs in a name, a shape, a dtype, or by one more parameter."""
    odd = env.last
    ways: dict[str, tuple[str, int, torch.dtype, bool]] = {
        "name": ("bias_x" if odd else "bias_y", 4, torch.float32, False),
        "shape": ("tail", 5 if odd else 4, torch.float32, False),
        "dtype": ("tail", 4, torch.float64 if odd else torch.float32, False),
        "number": ("tail", 4, torch.float32, odd),
    }
    figures: Figures = {}
    with env.block() as strategy:
        for way, given in ways.items():
            model = _Named(*given)
            figures[way] = refusal(lambda model=model: strategy.prepare(model))
        called = _Named(*ways["shape"])
        figures["called"] = refusal(lambda: called(torch.ones(2, 8)))
    return figures


@CASES.add("cell")
def a_part_called_alone(env: Env) -> Figures:
    with env.block():
        model = Net()
        optimizer = momentum(model.parameters())
        train(model, optimizer, loader(61), epochs=1)

        def alone() -> None:
            optimizer.zero_grad()
            model.encoder(torch.ones(2, 8)).sum().backward()
            optimizer.step()

        return refusal(alone)


@CASES.add("cell")
def a_model_made_outside(env: Env) -> Figures:
    """Called in the block and never prepared: taken on first use, or refused."""
    model = Net()
    with env.block():
        optimizer = adamw(model.parameters())
        told = refusal(lambda: train(model, optimizer, loader(61), epochs=1))
        return {**told, "parameters": {} if told["types"] else parameters(model)}


@CASES.add("cell")
def nested_blocks(env: Env) -> Figures:
    with env.block() as strategy:

        def inner() -> None:
            with env.strategy():
                pass

        figures = refusal(inner)
        figures["current"] = dream.current() is strategy
    figures["none"] = dream.current() is None
    return figures


@CASES.add("cell")
def words_that_are_not_known(env: Env) -> Figures:
    return {
        "strategy": refusal(lambda: dream.strategy("mirored", framework="torch")),
        "option": refusal(lambda: env.strategy(bucket_md=3)),
        "reduction": refusal(
            lambda: dream.strategy("mirrored", framework="torch", reduction="gluu")
        ),
        "framework": refusal(lambda: dream.strategy("mirrored", framework="pytorch")),
        "type": refusal(lambda: env.strategy(bucket_mb="large")),
    }


@CASES.add("cell")
def one_device_under_several_ranks(_: Env) -> Figures:
    return {
        "single": refusal(lambda: dream.strategy("single", framework="torch")),
        "data_parallel": refusal(lambda: dream.strategy("data_parallel", framework="torch")),
    }


@CASES.add("cell")
def single_samples_and_shapeless_parameters(env: Env) -> Figures:
    with env.block():
        lazy = nn.LazyLinear(4)
        return {
            "single": refusal(lambda: DataLoader(samples_of(5), batch_size=None)),
            "lazy": refusal(lambda: lazy(torch.ones(2, 8)).sum().backward()),
        }


class _Heads(nn.Module):
    """Cannot be called with no sample: the -1 is then anything."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.view(len(x), 2, -1)).sum(dim=1)


@CASES.add("cell", ends_job=True)
def a_model_that_cannot_take_an_empty_batch(env: Env) -> Figures:
    """The last rank raises; the others must not wait for it without end."""
    with env.block():
        model = _Heads()
        optimizer = momentum(model.parameters())
        return refusal(lambda: train(model, optimizer, loader(49), epochs=1, loss=F.cross_entropy))
