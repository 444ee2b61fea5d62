"""What every split module is: the outermost one that the user calls."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_leaves

from dream.adapters.pytorch import buffers
from dream.adapters.pytorch.reducing import call_empty, call_share
from dream.adapters.pytorch.slot import Slot, set_slot, slot_of
from dream.adapters.pytorch.split.in_parts import MARK, InParts, mark_states, said_of_module

if TYPE_CHECKING:
    from dream.adapters.pytorch.split.room import Room

Forward = Callable[..., Any]


def recomputing() -> bool:
    """Whether a module is called by a backward pass that computes it again."""
    return torch._C._current_graph_task_id() != -1


class SplitRoot(Slot):
    """Takes the calls of one module whose parameters are split over the ranks.

    The module keeps its name and its place; its parameters are new ones, in parts.

    parts: the parameters that were split, or left whole on purpose, by id.
    """

    def __init__(self, module: nn.Module, room: Room, inner: Forward | None) -> None:
        super().__init__(module, inner)
        self.room = room
        self.parts: dict[int, nn.Parameter] = {}
        self._norms = buffers.norms(module)

    @abstractmethod
    def cut(self) -> None:
        """Split what is not split yet, in place."""

    @abstractmethod
    def weigh(self, weight: float) -> None:
        """What the next gradient of this module counts for; 0 makes it zero, whatever it was."""

    @abstractmethod
    def rest(self) -> None:
        """After calls that no backward follows: only parts stay in memory."""

    @abstractmethod
    def of_copy(self, module: nn.Module) -> Slot | None:
        """What takes the calls of a copy of the module, or of one of its parts."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self.inner, args, kwargs)

    def run(self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call by the user's loop, of the module or one of its parts; or by the model itself."""
        if self.room.inside or recomputing():
            return forward(*args, **kwargs)
        if not torch.is_grad_enabled():
            return self._without_gradients(forward, args, kwargs)
        weight = self.room.shares.weight((*args, *kwargs.values()))
        return self.run_weighed(forward, args, kwargs, weight)

    def run_part(
        self, part: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call of a part by itself."""
        return self.run(forward, args, kwargs)

    def run_weighed(
        self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any], weight: float
    ) -> Any:
        """A training call, whose gradient counts for `weight`."""
        self.weigh(weight)
        self.room.inside = True
        try:
            if weight == 0.0:
                output = call_empty(self.module, forward, args, kwargs)
            else:
                output = call_share(self.module, forward, args, kwargs)
        finally:
            self.room.inside = False
        self._average_running()
        if not any(_needs_backward(leaf) for leaf in tree_leaves(output)):
            self.rest()
        return output

    def _without_gradients(
        self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Tensors made under inference_mode could never be trained with; parameters may be among
        them."""
        self.room.inside = True
        try:
            with torch.inference_mode(False), torch.no_grad():
                return forward(*args, **kwargs)
        finally:
            self.room.inside = False
            self.rest()

    def _average_running(self) -> None:
        running = buffers.running(self._norms) if self._norms else []
        if running:
            torch._foreach_copy_(running, self.room.dealt.all_reduce(running))


def _needs_backward(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


@final
class Part(Slot):
    """Takes the calls of a part of a split module that may be called by itself."""

    def __init__(self, module: nn.Module, root: SplitRoot) -> None:
        inner = slot_of(module).inner if isinstance(slot_of(module), Slot) else None
        super().__init__(module, inner)
        self.root = root

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.root.room.inside or recomputing():
            return self.inner(*args, **kwargs)
        return self.root.run_part(self.module, self.inner, args, kwargs)


def cut_loaded(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """A hook before load_state_dict: of whole tensors each rank takes its parts."""
    for name, parameter in module.named_parameters():
        value: Any = state.get(prefix + name)
        if isinstance(parameter, DTensor) and type(value) in (torch.Tensor, nn.Parameter):
            mesh, placements = parameter.device_mesh, parameter.placements
            state[prefix + name] = distribute_tensor(
                value.detach(), mesh, placements, src_data_rank=None
            )


def claim(root: SplitRoot) -> None:
    """The module and its parts are the root's, whatever they were before."""
    for part in root.module.modules():
        set_slot(part, root if part is root.module else Part(part, root))
        others = {name: value for name, value in vars(part).items() if name != MARK}
        vars(part).clear()  # a pickler is to meet the mark before hooks that it cannot take
        vars(part).update({MARK: InParts(said_of_module(type(part).__name__))} | others)
    mark_states(root.module)


def copy_parts(module: nn.Module, memo: dict[int, Any]) -> None:
    """Have a deep copy take these copies of the parameters. torch cannot copy a DTensor that has a
    gradient."""
    for parameter in module.parameters():
        if isinstance(parameter, DTensor) and id(parameter) not in memo:
            copied = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
            memo[id(parameter)] = copied
