"""What a server must know of an optimizer to run it over its shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Self

import torch
from torch.optim import Optimizer

from dream._plain import name_of
from dream.adapters.pytorch.tensors import CODEC, load
from dream.parameter_server import kinds
from dream.parameter_server.words import garbled


@dataclass(frozen=True)
class Recipe:
    """kind: the name of the optimizer's class; shapes: of the shard's parameters; settings: each
    group's hyper-parameters; groups: each group's parameters, as places in the shard; state: of
    those that have one, by place."""

    kind: str
    defaults: dict[str, Any]
    shapes: list[tuple[int, ...]]
    settings: list[dict[str, Any]]
    groups: list[list[int]]
    state: dict[int, Any]

    @classmethod
    def of(cls, data: bytes, size: int) -> Self:
        """What a worker has sent. size: how many elements the shard's parameters have."""
        said = load(data)
        if not isinstance(said, tuple) or len(said) != 6:
            garbled("a recipe")
        told = cls(*said)
        try:
            places = [place for group in told.groups for place in group]
            fits = sum(prod(shape) for shape in told.shapes) == size
            fits = fits and sorted(places) == list(range(len(told.shapes)))
            fits = fits and len(told.settings) == len(told.groups)
            fits = fits and set(told.state) <= set(places)
        except TypeError:
            fits = False
        if not fits:
            garbled(f"a recipe for {size} elements")
        return told

    def made(self, parameters: Sequence[torch.nn.Parameter]) -> Optimizer:
        """The optimizer over the shard's parameters, of a class that this process has."""
        kind: Any = kinds.find(self.kind, Optimizer)
        groups = [
            {**settings, "params": [parameters[place] for place in places]}
            for settings, places in zip(self.settings, self.groups, strict=True)
        ]
        optimizer: Optimizer = kind.__new__(kind)
        optimizer.__setstate__({"defaults": self.defaults, "state": {}, "param_groups": groups})
        return optimizer


def recipe(optimizer: Optimizer, kind: type[Optimizer], shard: Sequence[int]) -> bytes:
    """The optimizer as the server of some parameters needs it. shard: their places in the order
    of the groups. Unsupported for what cannot travel."""
    places = {index: place for place, index in enumerate(shard)}
    groups, first = [], 0
    for group in optimizer.param_groups:
        last = first + len(group["params"])
        groups.append([places[index] for index in range(first, last) if index in places])
        first = last
    own = parameters_of(optimizer)
    state = {
        place: optimizer.state[own[index]]
        for index, place in places.items()
        if own[index] in optimizer.state
    }
    shapes = [tuple(own[index].shape) for index in shard]
    name = name_of(kind)
    made = Recipe(name, optimizer.defaults, shapes, settings_of(optimizer), groups, state)
    return kinds.packed(tuple(vars(made).values()), kind.__name__, CODEC)


def parameters_of(optimizer: Optimizer) -> list[torch.nn.Parameter]:
    """In the order of the groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def settings_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Each group's hyper-parameters, as they are now."""
    return [
        {
            name: _plain(value)
            for name, value in group.items()
            if name not in ("params", "param_names")
        }
        for group in optimizer.param_groups
    ]


def _plain(value: Any) -> Any:
    """A tensor of one number as that number."""
    is_number = isinstance(value, torch.Tensor) and not value.shape
    return value.item() if is_number else value
