"""What ranks do whose gradients become one by Adasum, and processes with master weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

import dream
from dream.adapters.pytorch.update.recompute import again_in_threads


def adasum() -> dict[str, Any]:
    """This rank's own gradient, and what became of it."""
    with dream.strategy("mirrored", framework="torch", op="adasum") as strategy:
        rank = strategy.topology.rank
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        x = torch.from_numpy(np.random.default_rng(rank).normal(size=(8, 6)).astype("float32"))
        (model(x) * (rank + 1)).square().mean().backward()
        alone = copy.deepcopy(model)
        own = torch.autograd.grad((alone(x) * (rank + 1)).square().mean(), [*alone.parameters()])
    return {
        "own": [gradient.numpy() for gradient in own],
        "found": [p.grad.numpy() for p in model.parameters() if p.grad is not None],
    }


def _moved(
    precision: str, steps: int, lr: float = 1e-4, momentum: float = 0.9
) -> tuple[nn.Module, Any, float]:
    torch.manual_seed(0)
    with dream.strategy("single", framework="torch", precision=precision):
        model = nn.Linear(4, 4)
        nn.init.constant_(model.weight, 0.5)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
        begin = model.weight.detach().clone()
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    return model, optimizer, float((model.weight.detach().float() - begin).abs().max())


def moved() -> dict[str, float]:
    """How far steps that are smaller than half of float16's resolution have led in the end."""
    return {name: _moved(name, 200, 1e-5, 0.0)[2] for name in ("float32", "O2", "O3")}


def resumed() -> tuple[list[Any], list[Any]]:
    """Parameters after 8 steps at once, and after 4, a file of states, and 4 by other objects."""
    whole = [p.detach().float().numpy() for p in _moved("O2", 8)[0].parameters()]
    first, optimizer, _ = _moved("O2", 4)
    states = copy.deepcopy((first.state_dict(), optimizer.state_dict()))
    with dream.strategy("single", framework="torch", precision="O2"):
        model = nn.Linear(4, 4)
        later = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        model.load_state_dict(states[0])
        later.load_state_dict(states[1])
        for _ in range(4):
            later.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            later.step()
        assert {s["momentum_buffer"].dtype for s in later.state.values()} == {torch.float32}
    return whole, [p.detach().float().numpy() for p in model.parameters()]


def drawn_again() -> list[float]:
    """How far two backward passes through layers that draw are off where these are recomputed, and
    others have drawn from the generator since."""
    layers = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.RReLU(), nn.Linear(4, 4))
    x = torch.ones(8, 4)

    def passes(run: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        torch.manual_seed(1)
        output = run(x).square().sum()
        torch.rand(100)
        weights = [*layers.parameters()]
        twice = (torch.autograd.grad(output, weights, retain_graph=True) for _ in range(2))
        return [gradient for gradients in twice for gradient in gradients]

    kept, again = passes(layers), passes(partial(again_in_threads, layers, []))
    return [float((a - b).abs().max()) for a, b in zip(kept, again, strict=True)]


def loaded_in_pieces() -> list[float]:
    """What becomes of weights that are loaded where each rank has pieces and their masters."""
    with dream.strategy("sharded", framework="torch", zero=3, precision="O2"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for _ in range(2):
            state = {name: torch.full(p.shape, 0.5) for name, p in model.named_parameters()}
            model.load_state_dict(state)
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
        pieces: list[Any] = [*model.parameters()]
        return [float((p.full_tensor().float() - 0.5).abs().max()) for p in pieces]
