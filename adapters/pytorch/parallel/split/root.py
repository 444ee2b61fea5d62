"""What every split module is: the outermost one that the user calls."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_leaves

from dream.adapters.pytorch.call_hook import CallHook, hook_of, set_hook
from dream.adapters.pytorch.module import call_empty, call_share
from dream.adapters.pytorch.parallel.split.in_parts import (
    MARK,
    InParts,
    mark_states,
    said_of_module,
)
from dream.adapters.pytorch.private import recomputing
from dream.adapters.pytorch.update import batch_norm
from dream.adapters.pytorch.update.batch_norm import Synchronised, synchronise
from dream.adapters.pytorch.update.recompute import recompute

if TYPE_CHECKING:
    from dream.adapters.pytorch.parallel.split.room import Room

Forward = Callable[..., Any]


class SplitRoot(CallHook):
    """Takes the calls of one module whose parameters are split over the ranks.

    The module keeps its name and its place; its parameters are new ones, in parts.

    parts: the parameters that were split, or left whole on purpose, by id.
    """

    def __init__(self, module: nn.Module, room: Room, inner: Forward | None) -> None:
        super().__init__(module, inner)
        self.room = room
        self.parts: dict[int, nn.Parameter] = {}
        self._norms = batch_norm.norms(module)
        self._synced: dict[nn.Module, Synchronised] = {}
        self._weight, self._silent = 1.0, False
        self._number = 0  # of the update that gradients were last gathered for
        self._completes = True

    @abstractmethod
    def cut(self) -> None:
        """Split what is not split yet, in place."""

    @abstractmethod
    def weigh(self, weight: float) -> None:
        """What the next gradient of this module counts for; 0 makes it zero, whatever it was."""

    @abstractmethod
    def gather(self, *, fresh: bool, completes: bool) -> None:
        """The next gradients are of a part of an update. fresh: of its first. completes: whether
        the gradient is whole with them, and is to be added up over the ranks."""

    @property
    @abstractmethod
    def gathering(self) -> list[nn.Parameter]:
        """The parameters that backward passes leave gradients in."""

    @abstractmethod
    def rest(self) -> None:
        """After calls that no backward follows: only parts stay in memory."""

    @abstractmethod
    def of_copy(self, module: nn.Module) -> CallHook | None:
        """What takes the calls of a copy of the module, or of one of its parts."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self.inner, args, kwargs)

    def run(self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call by the user's loop, of the module or one of its parts; or by the model itself."""
        room = self.room
        if room.inside:
            return forward(*args, **kwargs)
        if recomputing():
            return self._cast(forward, args, kwargs)
        if not torch.is_grad_enabled():
            return self._without_gradients(forward, args, kwargs)
        if room.precision is not None and room.precision.scaling is not None:
            room.precision.scaling.loop_calls()
        share = room.shares.of((*args, *kwargs.values()))
        if room.updates is not None:
            self.follow(completes=room.updates.begin(share))
        return self.run_weighed(forward, args, kwargs, 1.0 if share is None else share.weight)

    def run_part(
        self, part: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call of a part by itself."""
        return self.run(forward, args, kwargs)

    def run_weighed(
        self,
        forward: Forward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        weight: float,
        *,
        counted: bool = False,
    ) -> Any:
        """A training call, whose gradient counts for `weight`. counted: the loss is multiplied by
        what it counts for, and `weight` is 0 where that is 0, else 1."""
        self._count_for(weight, counted=counted)
        output = self._cast(self._called(forward, empty=weight == 0.0), args, kwargs)
        if self._completes:
            self._settle_statistics()
        leaves = [leaf for leaf in tree_leaves(output) if _needs_backward(leaf)]
        if not leaves:
            self.rest()
        self.room.called = bool(leaves)
        for leaf in leaves:
            if not leaf.is_leaf:
                leaf.register_hook(self._came)
        return output

    def weigh_by_hand(self, count: float) -> None:
        """The loss is weighed already; but nothing at all must not bring a nan."""
        self._count_for(0.0 if count == 0.0 else 1.0, counted=True)

    def follow(self, *, completes: bool) -> None:
        """The next gradients are of the update that the strategy is at."""
        updates = self.room.updates
        if updates is not None:
            fresh, self._number = updates.number != self._number, updates.number
            self._completes = completes
            self.gather(fresh=fresh, completes=completes)

    def take_knobs(self) -> None:
        """Have layers recomputed and normalise together, as was asked for. Done again after each
        cut."""
        room = self.room
        if room.synchronises:
            self._synced = synchronise(
                self.module, self._synced, room.dealt, self.trains, lambda: self._weight
            )
            self._norms = [n for n in batch_norm.norms(self.module) if n not in self._synced]
        recompute(self.module, room.recomputes, self.trains)

    def trains(self) -> bool:
        """Whether a part that is called now is called by a training call of the whole."""
        return torch.is_grad_enabled() and (self.room.inside or recomputing())

    def _without_gradients(
        self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Tensors made under inference_mode could never be trained with; parameters may be among
        them."""
        self.room.inside = True
        try:
            with torch.inference_mode(False), torch.no_grad():
                return self._beside(forward, args, kwargs)
        finally:
            self.room.inside = False
            self.rest()

    def _beside(self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        precision = self.room.precision
        if precision is None:
            return forward(*args, **kwargs)
        return precision.call_beside(self.module, forward, args, kwargs)

    def _called(self, forward: Forward, *, empty: bool) -> Forward:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.room.inside = True
            try:
                run = call_empty if empty else call_share
                return run(self.module, forward, args, kwargs)
            finally:
                self.room.inside = False

        return call

    def _cast(self, call: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        precision = self.room.precision
        return call(*args, **kwargs) if precision is None else precision.call(call, args, kwargs)

    def _count_for(self, weight: float, *, counted: bool) -> None:
        """Where BatchNorm sees all ranks' samples, those of a rank whose loss counts for nothing
        have gradients still, and only what comes from that loss is nothing."""
        self._silent = counted and weight == 0.0 and bool(self._synced)
        self._weight = 1.0 if self._silent else weight
        self.weigh(self._weight)

    def _came(self, gradient: torch.Tensor) -> torch.Tensor:
        """Backward has come to the module. Nothing times what was not finite is nothing."""
        self.room.called = False
        return gradient.nan_to_num(nan=0.0) if self._silent else gradient

    def _settle_statistics(self) -> None:
        for synced in self._synced.values():
            synced.settle()
        running = batch_norm.running(self._norms) if self._norms else []
        if running:
            torch._foreach_copy_(running, self.room.dealt.all_reduce(running))


def _needs_backward(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


@final
class Part(CallHook):
    """Takes the calls of a part of a split module that may be called by itself."""

    def __init__(self, module: nn.Module, root: SplitRoot) -> None:
        inner = hook_of(module).inner if isinstance(hook_of(module), CallHook) else None
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
            state[prefix + name] = cut_like(value.detach(), parameter)


def cut_like(whole: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A tensor spread over the ranks as a parameter is."""
    if not isinstance(parameter, DTensor):
        return whole
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(whole, mesh, placements, src_data_rank=None)


def claim(root: SplitRoot) -> None:
    """The module and its parts are the root's, whatever they were before."""
    for part in root.module.modules():
        set_hook(part, root if part is root.module else Part(part, root))
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
