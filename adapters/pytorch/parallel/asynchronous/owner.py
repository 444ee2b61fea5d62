"""A server's parameters under the optimizer that the script made on the workers."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import SGD, Optimizer

from dream.adapters.pytorch.parallel.asynchronous.recipe import Recipe
from dream.adapters.pytorch.tensors import CODEC, load
from dream.parameter_server import kinds
from dream.parameter_server.owner import Owner
from dream.parameter_server.words import garbled

_MOST_KEPT = 16


@final
class TorchOwner(Owner):
    """The optimizer's own class and groups, rebuilt over this server's parameters."""

    def __init__(self) -> None:
        threading.Thread(target=_warm_up, name="dream-warm-up", daemon=True).start()
        self._values: NDArray[Any] = np.empty(0, np.float32)
        self._optimizer: Optimizer
        self._parameters: list[nn.Parameter] = []
        self._defaults: list[dict[str, Any]] = []
        self._kept: dict[int, list[torch.Tensor]] = {}

    def build(self, recipe: bytes, values: NDArray[Any]) -> None:
        told = Recipe.of(recipe, values.size)
        self._values = values
        flat = torch.from_numpy(values)
        self._parameters = [nn.Parameter(view) for view in _views(flat, told.shapes)]
        self._defaults = told.settings
        self._optimizer = told.made(self._parameters)
        self._optimizer.state = defaultdict(dict)
        self._take(told.state)

    @property
    def values(self) -> NDArray[Any]:
        return self._values

    def read_settings(self, settings: bytes) -> Any:
        told = load(settings)
        groups = len(self._defaults)
        if not isinstance(told, list) or [type(group) for group in told] != [dict] * groups:
            garbled("the settings of this optimizer's groups")
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
        """Each parameter's gradient; those in a worker's buffer, where the next will be too, are
        kept."""
        address = gradient.ctypes.data
        views = self._kept.get(address)
        if views is None:
            shapes = [parameter.shape for parameter in self._parameters]
            views = _views(torch.from_numpy(gradient), shapes)
            if not gradient.flags.owndata:
                if len(self._kept) >= _MOST_KEPT:
                    self._kept.clear()
                self._kept[address] = views
        return views

    def save(self) -> bytes:
        places = {id(parameter): index for index, parameter in enumerate(self._parameters)}
        state = {places[id(p)]: value for p, value in self._optimizer.state.items()}
        return kinds.packed(state, type(self._optimizer).__name__, CODEC)

    def restore(self, state: bytes) -> None:
        self._take(load(state))

    def _take(self, state: dict[int, Any]) -> None:
        """State of the parameters, by place."""
        for place, value in state.items():
            self._optimizer.state[self._parameters[place]] = value


def _warm_up() -> None:
    """torch loads its compiler with the first optimizer: while the workers still come."""
    SGD([nn.Parameter(torch.zeros(1))], lr=0.1).step()


def _views(flat: torch.Tensor, shapes: Any) -> list[torch.Tensor]:
    parts = flat.split([int(np.prod(shape)) for shape in shapes])
    return [part.view(tuple(shape)) for part, shape in zip(parts, shapes, strict=True)]
