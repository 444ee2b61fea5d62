"""Gradients that travel otherwise than as they are."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from contract_case import WITH_DREAM, Env, Figures, refusal
from contract_torch_kit import (
    CASES,
    LONG,
    Net,
    array,
    arrays,
    loader,
    momentum,
    parameters,
    train,
)
from torch.nn import functional as F

KINDS = ("float16", "bfloat16", "powersgd:2", "topk:0.1")


@contextmanager
def _wire_bytes(strategy: Any) -> Iterator[list[float]]:
    """What this rank hands to its wire, as each collective sends at least."""
    wire = strategy.communicator._wire
    kind, ranks = type(wire), strategy.topology.world_size
    sent = [0.0]
    factors = {"all_reduce": 2 * (ranks - 1) / ranks, "all_to_all": (ranks - 1) / ranks}
    own = {name: getattr(kind, name) for name in (*factors, "all_gather")}

    def noting(name: str) -> Any:
        def call(self: Any, buffers: Any, *args: Any) -> Any:
            listed = buffers if isinstance(buffers, list) else [buffers]
            size = sum(b.numel() * b.element_size() for b in listed)
            sent[0] += size * factors.get(name, ranks - 1)
            return own[name](self, buffers, *args)

        return call

    for name in own:
        setattr(kind, name, noting(name))
    try:
        yield sent
    finally:
        for name, method in own.items():
            setattr(kind, name, method)


def _compressed(env: Env, kind: str) -> Figures:
    torch.manual_seed(0)
    with env.block(compression=kind) as strategy:
        model = Net()
        optimizer = momentum(model.parameters())
        train(model, optimizer, loader(61), epochs=2)  # in which the first losses are looked at
        sent = [0.0]
        if env.mode == "cell":
            with _wire_bytes(strategy) as sent:
                train(model, optimizer, loader(61), epochs=LONG - 2)
        else:
            train(model, optimizer, loader(61), epochs=LONG - 2)
        found = parameters(model)
        step = strategy.train_step(model, F.cross_entropy, optimizer)
        values = [float(step(*batch)) for _ in range(6) for batch in loader(61)]
    size = 4 * sum(p.numel() for p in model.parameters())
    updates = (LONG - 2) * len(loader(61))
    ranks = env.ranks
    return {
        "parameters": found,
        "ratio": sent[0] / (updates * size * 2 * (ranks - 1) / ranks) if ranks > 1 else 1.0,
        "values": values,
    }


@CASES.add(*WITH_DREAM)
def compressed(env: Env) -> Figures:
    """Parameters after 20 updates, bytes beside what the gradients have, and how it learns on."""
    return {kind: _compressed(env, kind) for kind in KINDS}


@CASES.add("cell")
def adasum(env: Env) -> Figures:
    """Each rank's own gradient of two models, and what became of them."""

    def act() -> Figures:
        with env.block(op="adasum") as strategy:
            x, y = arrays(16 * env.ranks)
            x, y = x[env.rank :: env.ranks], y[env.rank :: env.ranks]
            model = Net()
            optimizer = momentum(model.parameters())
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()  # rank 0's weights start
            alone = copy.deepcopy(model)
            named = dict(alone.named_parameters())
            own = torch.autograd.grad(F.cross_entropy(alone(x), y), [*named.values()])
            figures = {
                "own": {n: array(g) for n, g in zip(named, own, strict=True)},
                "found": {n: array(p.grad) for n, p in model.named_parameters()},
            }
            train(model, optimizer, loader(61), epochs=1)
            step = strategy.train_step(model, F.cross_entropy, optimizer)
            values = [float(step(*batch)) for batch in loader(61)]
        return {**figures, "parameters": parameters(model), "values": values}

    figures: Figures = {}
    figures["refusal"] = refusal(lambda: figures.update(act()))
    return figures
