"""Step parameters of one shape once: what an optimizer does with each of them is the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from dream.adapters.pytorch.tools.planning.ledger import Ledger


def step_twins_once(optimizer: Optimizer, ledger: Ledger) -> Callable[[], None]:
    """Return a step of an optimizer that takes one parameter after the other: of those that are
    alike the first is stepped, and counts for all. Each has a state of its own in the end."""
    step = optimizer.step

    def stepped() -> None:
        groups = _alike(optimizer)
        grads = {p: p.grad for group in groups for p in group}
        for p in grads:
            p.grad = None
        for first, *twins in groups:
            begun = len(ledger.done), len(ledger.sent)
            first.grad = grads[first]
            step()
            first.grad = None
            ledger.done += ledger.done[begun[0] :] * len(twins)
            ledger.sent += ledger.sent[begun[1] :] * len(twins)
            _give_state(optimizer, first, twins)
        for p, grad in grads.items():
            p.grad = grad

    return stepped


def _alike(optimizer: Optimizer) -> list[list[nn.Parameter]]:
    """Group the parameters that have a gradient."""
    found: dict[Any, list[nn.Parameter]] = defaultdict(list)
    for index, group in enumerate(optimizer.param_groups):
        for p in group["params"]:
            if p.grad is not None:
                found[index, _kind(p), _kind(p.grad), p in optimizer.state].append(p)
    return [*found.values()]


def _kind(x: torch.Tensor) -> Any:
    if isinstance(x, DTensor):
        return x.device_mesh, x.placements, x.shape, _kind(x.to_local())
    return x.shape, x.stride(), x.dtype


def _give_state(optimizer: Optimizer, first: nn.Parameter, twins: list[nn.Parameter]) -> None:
    made = optimizer.state[first]
    for twin in twins:
        if len(optimizer.state[twin]) < len(made):
            optimizer.state[twin] = {
                key: x.clone() if isinstance(x, torch.Tensor) else x for key, x in made.items()
            }
