"""What a server must know of an optimizer to run it over its shard."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from dream._errors import Unsupported


@dataclass(frozen=True)
class Recipe:
    """kind: the optimizer's class; shapes: of the shard's parameters; settings: each group's
    hyper-parameters; groups: each group's parameters, as places in the shard; state: of those
    that have one, by place."""

    kind: type[Optimizer]
    defaults: dict[str, Any]
    shapes: list[tuple[int, ...]]
    settings: list[dict[str, Any]]
    groups: list[list[int]]
    state: dict[int, Any]


def recipe(optimizer: Optimizer, kind: type[Optimizer], shard: Sequence[int]) -> bytes:
    """The optimizer as the server of some parameters needs it. shard: their places in the order
    of the groups."""
    places = {index: place for place, index in enumerate(shard)}
    groups, first = [], 0
    for group in optimizer.param_groups:
        last = first + len(group["params"])
        groups.append([places[index] for index in range(first, last) if index in places])
        first = last
    own = parameters_of(optimizer)
    state = {
        place: _on_cpu(optimizer.state[own[index]])
        for index, place in places.items()
        if own[index] in optimizer.state
    }
    shapes = [tuple(own[index].shape) for index in shard]
    made = Recipe(kind, optimizer.defaults, shapes, settings_of(optimizer), groups, state)
    return dump(made)


def parameters_of(optimizer: Optimizer) -> list[torch.nn.Parameter]:
    """In the order of the groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def settings_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Each group's hyper-parameters, as they are now."""
    return [
        {
            name: value.item() if isinstance(value, torch.Tensor) else value
            for name, value in group.items()
            if name not in ("params", "param_names")
        }
        for group in optimizer.param_groups
    ]


def dump(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def load(data: bytes) -> Any:
    """What a worker of this job has sent: it knows the job's token, and runs the same script."""
    try:
        return torch.load(io.BytesIO(data), weights_only=False)
    except (AttributeError, ImportError, pickle.UnpicklingError) as error:
        raise Unsupported(
            f"The server cannot make the workers' optimizer. Received: {error}. Define its class "
            "in a module, or in the script before the block, so that the server knows it too."
        ) from error


def _on_cpu(state: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.cpu() if isinstance(value, torch.Tensor) else value
        for name, value in state.items()
    }
