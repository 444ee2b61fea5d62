"""An optimizer that steps this rank's part of the one copy, and holds the whole state between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from mmap import mmap
from types import MappingProxyType
from typing import Any, final

import torch
from torch import nn, optim
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.pytorch.parallel.one_copy.parameters import Layout, OneCopy
from dream.shared_memory import block

ELEMENTWISE: Mapping[type[Optimizer], tuple[str, ...]] = MappingProxyType(
    {
        optim.SGD: ("momentum_buffer",),
        optim.Adam: ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
        optim.AdamW: ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
        optim.NAdam: ("exp_avg", "exp_avg_sq"),
        optim.RAdam: ("exp_avg", "exp_avg_sq"),
        optim.Adamax: ("exp_avg", "exp_inf"),
        optim.RMSprop: ("square_avg", "momentum_buffer", "grad_avg"),
        optim.Adagrad: ("sum",),
        optim.Adadelta: ("square_avg", "acc_delta"),
        optim.ASGD: ("ax",),
        optim.Rprop: ("prev", "step_size"),
    }
)
"""Optimizers that step each element by itself, and their states that have a number for each."""

State = defaultdict[Any, dict[str, Any]]


@final
class PieceUpdate:
    """Steps one optimizer on this rank's pieces. Between steps its parameters and its state are the
    user's, whole and in the ranks' memory; while it steps they are this rank's pieces of them.

    copy: of the module's parameters as it is now.
    """

    def __init__(self, optimizer: Optimizer, copy: Callable[[], OneCopy | None]) -> None:
        if type(optimizer) not in ELEMENTWISE:
            raise Unsupported(
                "Each rank updates a part of the one copy, so the optimizer must step each element "
                f"by itself. Received: {type(optimizer).__name__}. Use one of "
                f"{', '.join(kind.__name__ for kind in ELEMENTWISE)}, or remove one_copy."
            )
        self._optimizer, self._find = optimizer, copy
        self._names = ELEMENTWISE[type(optimizer)]
        self._copy: OneCopy | None = None
        self._stepping = self._swapped = False
        self._params: list[list[nn.Parameter]] = []
        self._whole: State = defaultdict(dict)
        self._pieces: State = defaultdict(dict)
        self._known = 0
        self._memory: dict[tuple[str, int], mmap] = {}
        self._placed: dict[tuple[str, nn.Parameter], torch.Tensor] = {}
        self._handles: list[RemovableHandle] = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """The explicit step runs; outside of it the optimizer does not step."""
        self._stepping = True
        try:
            yield
        finally:
            self._stepping = False
            if self._swapped:  # a step that ended in an error
                self._put_back()

    def let_go(self) -> None:
        """The state is this rank's own from now on."""
        for handle in self._handles:
            handle.remove()
        for state in self._whole.values():
            for name in self._names:
                if isinstance(state.get(name), torch.Tensor):
                    state[name] = state[name].clone()

    def _before(self, optimizer: Optimizer, *_: Any) -> None:
        if not self._stepping:
            raise ConfigurationError(
                "With one copy of the weights an optimizer steps in train_step alone. Received: "
                f"{type(optimizer).__name__}.step() in the loop. Call the function that "
                "strategy.train_step(model, loss, optimizer) returns, or remove one_copy."
            )
        copy = self._find()
        assert copy is not None
        if copy is not self._copy or self._changed():
            self._bind(copy)
        groups = optimizer.param_groups
        self._params = [group["params"] for group in groups]
        for group in groups:
            group["params"] = [self._piece(copy, parameter) for parameter in group["params"]]
        optimizer.state = self._pieces
        self._swapped = True

    def _after(self, *_: Any) -> None:
        assert self._copy is not None
        self._place(self._copy)
        self._put_back()
        self._copy.group.barrier()

    def _put_back(self) -> None:
        for group, parameters in zip(self._optimizer.param_groups, self._params, strict=True):
            group["params"] = parameters
        self._optimizer.state = self._whole
        self._known = len(self._whole)
        self._swapped = False

    def _changed(self) -> bool:
        """Whether the state was loaded or cleared since the last step."""
        return self._optimizer.state is not self._whole or len(self._whole) != self._known

    def _piece(self, copy: OneCopy, parameter: nn.Parameter) -> nn.Parameter:
        if parameter in copy.pieces:
            return copy.pieces[parameter][0]
        if parameter.grad is None:
            return parameter
        raise Unsupported(
            "With one copy of the weights an optimizer steps the parameters of the model of its "
            f"train_step. Received: one of shape {tuple(parameter.shape)} beside them that has a "
            "gradient. Put it into the model, or remove one_copy."
        )

    def _bind(self, copy: OneCopy) -> None:
        """Take the state as it is, cut."""
        stepped = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
        beside = [tuple(p.shape) for p in copy.pieces if id(p) not in stepped]
        if beside:
            raise Unsupported(
                "With one copy of the weights one optimizer steps all of a model. Received: "
                f"{len(beside)} of its parameters that {type(self._optimizer).__name__} does not "
                f"step, the first of shape {beside[0]}. Freeze them by requires_grad_(False), or "
                "remove one_copy."
            )
        if copy is not self._copy:
            self._memory = {}
        self._copy, self._placed = copy, {}
        self._whole = self._optimizer.state
        self._pieces = defaultdict(dict)
        for parameter, (piece, layout, place) in copy.pieces.items():
            if parameter in self._whole:
                self._pieces[piece] = {
                    name: self._cut(name, value, layout, place)
                    for name, value in self._whole[parameter].items()
                }

    def _cut(self, name: str, value: Any, layout: Layout, place: int) -> Any:
        if name in self._names and isinstance(value, torch.Tensor):
            return layout.cut(value, place)
        return value

    def _place(self, copy: OneCopy) -> None:
        """Have the pieces of the state lie in the ranks' memory, and the whole of it be seen."""
        for parameter, (piece, layout, place) in copy.pieces.items():
            state = self._pieces.get(piece)
            if state is None:
                continue
            whole = self._whole[parameter]
            for name, value in state.items():
                if name not in self._names or not isinstance(value, torch.Tensor):
                    whole[name] = value
                elif value is not self._placed.get((name, piece)):
                    whole[name] = self._move(name, value, piece, copy, layout, place)

    def _move(
        self, name: str, value: torch.Tensor, piece: nn.Parameter, copy: OneCopy, layout: Layout,
        place: int,
    ) -> torch.Tensor:  # fmt: skip
        if value.dtype != layout.dtype:
            raise Unsupported(
                "With one copy of the weights an optimizer's state is of its parameters' type. "
                f"Received: {name} in {value.dtype}, of a parameter in {layout.dtype}. Remove "
                "one_copy."
            )
        key = name, copy.layouts.index(layout)
        if key not in self._memory:
            self._memory[key] = block(copy.group, layout.bytes)
        there = layout.piece(self._memory[key], place)
        there.copy_(value)
        self._pieces[piece][name] = self._placed[name, piece] = there
        return layout.whole(self._memory[key], place)
