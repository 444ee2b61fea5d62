"""What the block does to optimizers: they are given the parts of split modules, and step them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, final
from weakref import WeakSet

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from dream._errors import ConfigurationError
from dream.adapters.pytorch.parallel.split.in_parts import mark_optimizer
from dream.adapters.pytorch.parallel.split.room import Room


@final
class Optimizers:
    """The optimizers of one strategy."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._known: WeakSet[Optimizer] = WeakSet()
        room.followers.append(self._follow)

    def wrap_init(self, init: Callable[..., None]) -> Callable[..., None]:
        """`Optimizer.__init__` whose parameters' modules are split first."""

        @wraps(init)
        def wrapped(optimizer: Optimizer, params: Any, *args: Any, **kwargs: Any) -> None:
            self._room.rest()  # so that a model's parameters are its parts
            listed = _listed(params)
            self._room.split_owners(_tensors(listed))
            init(optimizer, self._replaced(listed), *args, **kwargs)
            self.take(optimizer)

        return wrapped

    def take(self, optimizer: Optimizer) -> None:
        """Step parts only, from here on."""
        if optimizer not in self._known:
            self._known.add(optimizer)
            optimizer.register_step_pre_hook(_Before(self._room))
            mark_optimizer(optimizer)
        self._swap(optimizer)

    def _follow(self) -> None:
        """Parameters have been replaced."""
        for optimizer in self._known:
            self._swap(optimizer)

    def _swap(self, optimizer: Optimizer) -> None:
        """Put the new parameters where the old ones are."""
        for group in optimizer.param_groups:
            for index, parameter in enumerate(group["params"]):
                new = self._room.replaced.get(parameter)
                if new is None:
                    continue
                if optimizer.state.get(parameter):
                    raise ConfigurationError(
                        "An optimizer that has stepped cannot take the parts of a split model. "
                        f"Received: {type(optimizer).__name__} with state for a parameter of "
                        f"shape {tuple(parameter.shape)}. Make the optimizer after the model is "
                        "split, or load its state then."
                    )
                group["params"][index] = new

    def _replaced(self, listed: Any) -> Any:
        if not isinstance(listed, list):
            return listed
        return [self._new(item) for item in listed]

    def _new(self, item: Any) -> Any:
        if isinstance(item, dict):
            params = item["params"]
            new = self._replaced(params) if isinstance(params, list) else self._new(params)
            return item | {"params": new}
        if isinstance(item, tuple) and len(item) == 2:
            return item[0], self._new(item[1])
        if isinstance(item, torch.Tensor):
            return self._room.replaced.get(item, item)
        return item


def _listed(params: Any) -> Any:
    """An optimizer's argument with its iterators read; what is no iterable is left to torch."""
    if isinstance(params, (torch.Tensor, dict, str)) or not isinstance(params, Iterable):
        return params
    return [
        item | {"params": _listed(item["params"])}
        if isinstance(item, dict) and "params" in item
        else item
        for item in params
    ]


def _tensors(listed: Any) -> Iterator[torch.Tensor]:
    if isinstance(listed, torch.Tensor):
        yield listed
    elif isinstance(listed, dict):
        yield from _tensors(listed.get("params"))
    elif isinstance(listed, (list, tuple)):
        for item in listed:
            yield from _tensors(item)


@final
class _Before:
    """A step pre-hook: the gradients are of split modules."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._seen: tuple[int, ...] = ()

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if len(args) > 1 or kwargs.get("closure") is not None:
            return  # the closure computes the gradients
        stepped = [p for group in optimizer.param_groups for p in group["params"]]
        seen = tuple(id(p) for p in stepped if p.grad is not None)
        if seen != self._seen:
            _check(optimizer, self._room)
            self._seen = seen


def _check(optimizer: Optimizer, room: Room) -> None:
    """Each parameter with a gradient must be of a split module, or of none that was replaced."""
    if room.world.world_size == 1:
        return
    parts = room.parts()
    for number, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            gradient = parameter.grad
            if isinstance(parameter, DTensor) and not isinstance(gradient, DTensor | None):
                raise ConfigurationError(
                    "A gradient was set by hand that is not spread as its parameter is. Received: "
                    f"parameter {index} of group {number}, shape {tuple(parameter.shape)}. Call "
                    "backward() on the loss."
                )
            if gradient is not None and id(parameter) not in parts:
                raise ConfigurationError(
                    "A parameter's gradient is this rank's own, since no module that was made in "
                    "the block and split holds it. Received: parameter "
                    f"{index} of group {number}, shape {tuple(parameter.shape)}. Make it part of "
                    "a module, or pass the module and the optimizer to strategy.prepare."
                )
