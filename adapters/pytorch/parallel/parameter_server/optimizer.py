"""A torch optimizer as names and numbers, on its way to a server, and what is made of it there."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import SGD, Optimizer

from dream._plain import name_of
from dream.adapters.pytorch.optimizer import parameters_of
from dream.adapters.pytorch.tensors import CODEC, load
from dream.parameter_server.optimizer import ServerOptimizer, find_class, pack_optimizer
from dream.parameter_server.protocol import refuse_garbled

_MOST_KEPT = 16


@dataclass(frozen=True)
class TorchOptimizerSpec:
    """A torch optimizer as it travels to a server.

    kind: the name of the optimizer's class; shapes: of the shard's parameters; settings: each
    group's hyper-parameters; groups: each group's parameters, as places in the shard; state: of
    those that have one, by place.
    """

    kind: str
    defaults: dict[str, Any]
    shapes: list[tuple[int, ...]]
    settings: list[dict[str, Any]]
    groups: list[list[int]]
    state: dict[int, Any]

    @classmethod
    def of(cls, data: bytes, size: int) -> Self:
        """Read what a worker has sent. size: how many elements the shard's parameters have."""
        said = load(data)
        if not isinstance(said, tuple) or len(said) != 6:
            refuse_garbled("a description of an optimizer")
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
            refuse_garbled(f"a description of an optimizer over {size} elements")
        return told

    def make(self, parameters: Sequence[nn.Parameter]) -> Optimizer:
        """Make the optimizer over the shard's parameters, of a class that this process has."""
        kind: Any = find_class(self.kind, Optimizer)
        groups = [
            {**settings, "params": [parameters[place] for place in places]}
            for settings, places in zip(self.settings, self.groups, strict=True)
        ]
        optimizer: Optimizer = kind.__new__(kind)
        optimizer.__setstate__({"defaults": self.defaults, "state": {}, "param_groups": groups})
        return optimizer


def describe(optimizer: Optimizer, kind: type[Optimizer], shard: Sequence[int]) -> bytes:
    """Pack the optimizer as the server of some parameters needs it. shard: their places in the
    order of the groups. Unsupported for what cannot travel."""
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
    spec = TorchOptimizerSpec(
        name_of(kind), optimizer.defaults, shapes, settings_of(optimizer), groups, state
    )
    return pack_optimizer(tuple(vars(spec).values()), kind.__name__, CODEC)


def settings_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """List each group's hyper-parameters, as they are now; tensors of one number as that number."""
    return [
        {
            name: value.item() if isinstance(value, torch.Tensor) and not value.shape else value
            for name, value in group.items()
            if name not in ("params", "param_names")
        }
        for group in optimizer.param_groups
    ]


def views_of(flat: NDArray[Any], shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Split a flat array into tensors of these shapes, which share its memory."""
    parts = torch.from_numpy(flat).split([prod(shape) for shape in shapes])
    return [part.view(tuple(shape)) for part, shape in zip(parts, shapes, strict=True)]


@final
class TorchServerOptimizer(ServerOptimizer):
    """The optimizer's own class and groups, rebuilt over this server's parameters."""

    def __init__(self) -> None:
        threading.Thread(target=_warm_up, name="dream-warm-up", daemon=True).start()
        self._values: NDArray[Any] = np.empty(0, np.float32)
        self._optimizer: Optimizer
        self._parameters: list[nn.Parameter] = []
        self._defaults: list[dict[str, Any]] = []
        self._views: dict[int, list[torch.Tensor]] = {}

    def build(self, spec: bytes, values: NDArray[Any]) -> None:
        told = TorchOptimizerSpec.of(spec, values.size)
        self._values = values
        self._parameters = [nn.Parameter(view) for view in views_of(values, told.shapes)]
        self._defaults = told.settings
        self._optimizer = told.make(self._parameters)
        self._optimizer.state = defaultdict(dict)
        self._take(told.state)

    @property
    def values(self) -> NDArray[Any]:
        return self._values

    def read_settings(self, settings: bytes) -> Any:
        told = load(settings)
        groups = len(self._defaults)
        if not isinstance(told, list) or [type(group) for group in told] != [dict] * groups:
            refuse_garbled("the settings of this optimizer's groups")
        return told

    def step(self, gradient: NDArray[Any], present: bytes, settings: Any) -> None:
        views = self._views_of(gradient)
        for index, (parameter, view) in enumerate(zip(self._parameters, views, strict=True)):
            parameter.grad = None if present and not present[index] else view
        for group, own in zip(
            self._optimizer.param_groups, settings or self._defaults, strict=True
        ):
            group.update(own)
        self._optimizer.step()

    def _views_of(self, gradient: NDArray[Any]) -> list[torch.Tensor]:
        """Return each parameter's gradient; those in a worker's buffer, where the next will be too,
        are kept."""
        address = gradient.ctypes.data
        views = self._views.get(address)
        if views is None:
            views = views_of(gradient, [parameter.shape for parameter in self._parameters])
            if not gradient.flags.owndata:
                if len(self._views) >= _MOST_KEPT:
                    self._views.clear()
                self._views[address] = views
        return views

    def save(self) -> bytes:
        places = {id(parameter): index for index, parameter in enumerate(self._parameters)}
        state = {places[id(p)]: value for p, value in self._optimizer.state.items()}
        return pack_optimizer(state, type(self._optimizer).__name__, CODEC)

    def restore(self, state: bytes) -> None:
        self._take(load(state))

    def _take(self, state: dict[int, Any]) -> None:
        """Take the state of the parameters, by place."""
        for place, value in state.items():
            self._optimizer.state[self._parameters[place]] = value


def _warm_up() -> None:
    """Make one step: torch loads its compiler with the first, while the workers still come."""
    SGD([nn.Parameter(torch.zeros(1))], lr=0.1).step()
