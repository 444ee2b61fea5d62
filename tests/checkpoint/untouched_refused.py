"""Scripts that load nothing, and of which nothing is kept; what they are made of is in a module of
their own folder."""

from __future__ import annotations

import copy
import itertools
from collections import deque
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from untouched_loops import epoch_of, loader, main, net, script, state, stepped


@script
def made_within() -> Any:
    """Each item begins with a model of its own."""
    found = []
    for _ in range(3):
        model, data = net(), loader()
        found.append(epoch_of(model, torch.optim.SGD(model.parameters(), lr=0.1), data))
    return found


@script
def memory() -> Any:
    """Trains on what it has collected, of objects that nobody knows."""
    model, held = net(), deque(maxlen=9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = loader()
    for _ in range(4):
        held.append(lambda: 0)
        epoch_of(model, optimizer, data)
    return state(model)


@script
def left_early() -> Any:
    """Passes that are left before their end."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = loader()
    for _ in range(4):
        for x, y in data:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            stepped()
            break
    return state(model)


def parts() -> Any:
    model = net()
    return model, torch.optim.SGD(model.parameters(), lr=0.1), loader()


@script
def best_model() -> Any:
    model, optimizer, data = parts()
    best = None
    for epoch in range(4):
        epoch_of(model, optimizer, data)
        if epoch == 0:
            best = copy.deepcopy(model)
    return state(model), best is None


@script
def another_optimizer() -> Any:
    model, one, data = parts()
    two = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = one
    for epoch in range(4):
        epoch_of(model, optimizer, data)
        if epoch == 0:
            optimizer = two
    return state(model)


@script
def weights_not_copied() -> Any:
    model, optimizer, data = parts()
    best = {}
    for epoch in range(4):
        epoch_of(model, optimizer, data)
        if epoch == 0:
            best = model.state_dict()
    return state(model), len(best)


@script
def one_list_twice() -> Any:
    model, optimizer, data = parts()
    losses: list[float] = []
    history = {"losses": losses}
    for _ in range(4):
        losses.append(epoch_of(model, optimizer, data))
    return state(model), history


@script
def group_added() -> Any:
    model, data = net(), loader()
    optimizer = torch.optim.SGD(model[4].parameters(), lr=0.1)
    for epoch in range(4):
        epoch_of(model, optimizer, data)
        if epoch == 0:
            optimizer.add_param_group({"params": model[0].parameters()})
    return state(model)


@script
def gradients_left() -> Any:
    model, optimizer, data = parts()
    for _ in range(4):
        for index, (x, y) in enumerate(data):
            F.cross_entropy(model(x), y).backward()
            if index % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    return state(model)


@script
def rates_in_turn() -> Any:
    model, optimizer, data = parts()
    rates = itertools.cycle([0.1, 0.03, 0.01])
    for _ in range(4):
        optimizer.param_groups[0]["lr"] = next(rates)
        epoch_of(model, optimizer, data)
    return state(model)


@script
def own_generator() -> Any:
    """Draws by a generator that no checkpoint has."""
    model, draw = net(), np.random.default_rng(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = loader()
    for _ in range(4):
        for group in optimizer.param_groups:
            group["lr"] = draw.uniform(0.01, 0.1)
        epoch_of(model, optimizer, data)
    return state(model)


@script
def one_item() -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(1):
        epoch_of(model, optimizer, loader())
    return state(model)


if __name__ == "__main__":
    main()
