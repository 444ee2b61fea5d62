"""Optimizers whose state is sharded: each rank steps its rows of every parameter."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, final
from weakref import WeakSet

import torch
from torch import optim
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.optim import Optimizer

from dream._errors import Unsupported
from dream.adapters.pytorch.parallel.split.in_parts import mark_optimizer
from dream.adapters.pytorch.parallel.split.rows import Rows

_BY_ELEMENT = {
    optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax, optim.Adagrad,
    optim.Adadelta, optim.RMSprop, optim.Rprop, optim.ASGD,
}  # fmt: skip
"""What these do to an element depends on no other one, so rows may be stepped by themselves."""


@final
class ShardedSteps:
    """The optimizers of one strategy."""

    def __init__(self, rows: Rows, mesh: DeviceMesh | None) -> None:
        self._rows = rows
        self._mesh = mesh
        self._known: WeakSet[Optimizer] = WeakSet()

    def wrap_init(self, init: Callable[..., None]) -> Callable[..., None]:
        """`Optimizer.__init__` whose steps are sharded."""

        @wraps(init)
        def wrapped(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            self.take(optimizer)

        return wrapped

    def take(self, optimizer: Optimizer) -> None:
        if optimizer in self._known:
            return
        if type(optimizer) not in _BY_ELEMENT:
            raise Unsupported(
                "The state of this optimizer cannot be sharded by rows, since a step may look at "
                f"a whole parameter. Received: {type(optimizer).__name__} with zero=1. Use zero=2 "
                f"or zero=3; or one of {', '.join(sorted(kind.__name__ for kind in _BY_ELEMENT))}."
            )
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                _refuse_meta(parameter)
        self._known.add(optimizer)
        if self._rows.parts == 1:
            return
        step = _Step(self._rows)
        optimizer.register_step_pre_hook(step.before)
        optimizer.register_step_post_hook(step.after)
        if self._mesh is not None:
            states = _States(self._rows, self._mesh)
            states.cut(optimizer)
            optimizer.register_state_dict_post_hook(states.said)
            optimizer.register_load_state_dict_pre_hook(states.taken)
            mark_optimizer(optimizer)


def _refuse_meta(parameter: torch.Tensor) -> None:
    if parameter.is_meta:
        raise Unsupported(
            "Under zero=1 each rank holds the whole parameters, so making them on the meta device "
            f"saves nothing. Received: a meta parameter of shape {tuple(parameter.shape)}. Make "
            "the model on its real device, or use zero=2 or zero=3."
        )


@final
class _Step:
    """Around a step, parameters and gradients are this rank's rows of them."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._whole: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A closure is called here, since it needs the whole parameters; its loss is given back by
        one that stands in for it."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            args, kwargs = args[:1], {**kwargs, "closure": lambda: loss}
        stepped = [p for group in optimizer.param_groups for p in group["params"]]
        for parameter in stepped:
            if (gradient := parameter.grad) is not None:
                self._whole.append((parameter, parameter.data, gradient))
                parameter.grad = None
                parameter.data = self._rows.of(parameter.data)
                parameter.grad = self._rows.of(gradient)
        return args, kwargs

    def after(self, *_: Any) -> None:
        for parameter, data, gradient in self._whole:
            parameter.grad = None
            parameter.data = data
            parameter.grad = gradient
        self._rows.spread([data for _, data, _ in self._whole])
        self._whole.clear()


@final
class _States:
    """An optimizer's state as it is told and taken: DTensors, which know what they are parts of."""

    def __init__(self, rows: Rows, mesh: DeviceMesh) -> None:
        self._rows = rows
        self._mesh = mesh

    def cut(self, optimizer: Optimizer) -> None:
        """State that was there before."""
        for parameter, entries in optimizer.state.items():
            for name, value in entries.items():
                if _is_whole(value, parameter):
                    entries[name] = self._rows.of(value).clone()

    def said(self, optimizer: Optimizer, said: dict[str, Any]) -> dict[str, Any]:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        state = {
            key: {name: self._of_whole(value, parameters[key]) for name, value in entries.items()}
            for key, entries in said["state"].items()
        }
        return {**said, "state": state}

    def taken(self, optimizer: Optimizer, given: dict[str, Any]) -> dict[str, Any]:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        state = {
            key: {name: self._own(value, parameters[key]) for name, value in entries.items()}
            for key, entries in given["state"].items()
        }
        return {**given, "state": state}

    def _of_whole(self, value: Any, parameter: torch.Tensor) -> Any:
        own = self._rows.of(parameter)
        if not isinstance(value, torch.Tensor) or parameter.dim() == 0 or value.shape != own.shape:
            return value
        axes = self._mesh.ndim
        placements: list[Placement] = [*(Replicate() for _ in range(axes - 1)), Shard(0)]
        return DTensor.from_local(
            value, self._mesh, placements, run_check=False,
            shape=parameter.shape, stride=parameter.stride(),
        )  # fmt: skip

    def _own(self, value: Any, parameter: torch.Tensor) -> Any:
        if isinstance(value, DTensor):
            return value.to_local().clone()
        return self._rows.of(value).clone() if _is_whole(value, parameter) else value


def _is_whole(value: Any, parameter: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape == parameter.shape
