"""What the block does to modules: the outermost one that a training loop calls is distributed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, final
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dream._layout import check_same
from dream.adapters.pytorch import buffers, randomness
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.keras.entry import is_keras
from dream.adapters.pytorch.layout import layout_of, refuse_meta, refuse_uninitialised
from dream.adapters.pytorch.parallel.ddp.hooks import GradientHook
from dream.adapters.pytorch.parallel.ddp.root import Root
from dream.adapters.pytorch.parallel.ddp.runner import Runner, wrap
from dream.adapters.pytorch.reducing import Forward, Reducing, training_call
from dream.adapters.pytorch.slot import Slot, set_slot, slot_of
from dream.adapters.pytorch.update.precision import Precision
from dream.adapters.pytorch.update.recompute import How
from dream.adapters.pytorch.update.updates import Updates
from dream.collectives import Communicator

MakeRoot = Callable[[nn.Module, "Modules", Forward | None], Reducing]


@final
class Modules:
    """The modules of one strategy.

    inside: a distributed module is running, so those it calls are its parts.
    make: makes a module's root.
    generation: grows whenever parameters may have been replaced.
    searches: DDP looks for unused parameters at each step.
    updates: where the loop is, where its batches come in micro-batches; else None.
    synchronises: BatchNorm normalises by all ranks' samples. recomputes: which layers are.
    precision: what models are called in, where that is not float32.
    """

    def __init__(
        self,
        communicator: Communicator,
        shares: Shares,
        options: Mapping[str, Any],
        hook: GradientHook | None,
        make: MakeRoot = Root,
        updates: Updates | None = None,
        precision: Precision | None = None,
        *,
        synchronises: bool = False,
        recomputes: How = False,
    ) -> None:
        self.communicator = communicator
        self.shares = shares
        self.inside = False
        self.generation = 0
        self.roots: WeakSet[Reducing] = WeakSet()
        self.searches = bool(options.get("find_unused", False))
        self.updates = updates
        self.precision = precision
        self.synchronises = synchronises and communicator.world_size > 1
        self.recomputes = recomputes
        self._options = options
        self._hook = hook
        self._make = make
        self._offset = False
        self._told: WeakSet[nn.Module] = WeakSet()

    def wrap_init(self, init: Callable[..., None]) -> Callable[..., None]:
        """`Module.__init__` that has the module's calls looked at."""

        @wraps(init)
        def wrapped(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            init(module, *args, **kwargs)
            if not is_keras(module):
                set_slot(module, Adopted(module, self))

        return wrapped

    def distribute(self, module: nn.Module) -> Reducing:
        """The module's root, made on first use; the module's parts are then parts, not roots."""
        slot = slot_of(module)
        if isinstance(slot, Reducing) and slot in self.roots:
            return slot
        refuse_uninitialised(module)
        refuse_meta(module)
        for part in module.modules():
            if isinstance(slot_of(part), Reducing):
                slot_of(part).release()
                self.roots.discard(slot_of(part))
        self.generation += 1
        root = self._make(module, self, slot.inner if isinstance(slot, Slot) else None)
        self.roots.add(root)
        set_slot(module, root)
        return root

    def taken(self, root: Reducing) -> set[int]:
        """The ids of the parameters that other roots reduce."""
        return {id(p) for other in self.roots if other is not root for p in other.trained}

    def wrap(
        self, module: nn.Module, runner: Runner, taken: set[int]
    ) -> DistributedDataParallel | None:
        """DDP over a module; None where there is one rank, which reduces nothing."""
        if self.communicator.world_size == 1:
            return None
        self.settle(module)
        ddp = wrap(runner, self._options, self._hook, taken)
        self.begun(module)
        return ddp

    def settle(self, module: nn.Module) -> None:
        """Rank 0's weights, after a look at whether every rank built the same."""
        check_same(self.communicator.all_gather_object(layout_of(module)))
        self._start_as_rank_0(module)

    def begun(self, module: nn.Module) -> None:
        """A module is about to be trained for the first time."""
        if not self._offset:
            self._offset = True
            randomness.offset_by(self.communicator.rank)
        if module not in self._told:
            self._told.add(module)
            if not self.synchronises:
                buffers.tell_local_statistics(module)

    def _start_as_rank_0(self, module: nn.Module) -> None:
        """Rank 0's parameters and buffers, written only where they differ: a graph that holds
        them already (a penalty on the weights) must not find them touched."""
        own = [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
        for tensor, first in zip(own, self.communicator.broadcast(own), strict=True):
            if not torch.equal(tensor, first):
                tensor.copy_(first)

    def weigh_by_hand(self, count: float) -> None:
        """The user says what the loss is the mean over: `count` things."""
        for root in self.roots:
            root.weigh_by_hand(count)

    def called(self) -> bool:
        """Whether a module was called in training since the last backward."""
        return any(root.backwards.armed for root in self.roots)

    def trained(self) -> list[nn.Parameter]:
        """What the roots reduce."""
        return [parameter for root in self.roots for parameter in root.trained]

    def loss_weight(self) -> float:
        """What the loss of the last forward pass counts for."""
        called = [r for r in self.roots if isinstance(r, Root) and r.backwards.armed]
        return max((root.loss_weight for root in called), default=1.0)

    def reduced(self) -> dict[int, Reducing]:
        """The root that reduces each parameter's gradient, by the parameter's id."""
        found = {id(parameter): root for root in self.roots for parameter in root.trained}
        if self.precision is not None and self.precision.masters is not None:
            for root in self.roots:
                masters = map(self.precision.masters.of, root.trained)
                found |= {id(master): root for master in masters if master is not None}
        return found


@final
class Adopted(Slot):
    """Takes the calls of a module made in the block until it is known whose part it is."""

    def __init__(self, module: nn.Module, room: Modules) -> None:
        super().__init__(module)
        self._room = room

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self.module
        if training_call(self._room):
            parameters = list(module.parameters())
            if not parameters and self.inner == module._call_impl:
                set_slot(module, None)
            elif any(parameter.requires_grad for parameter in parameters):
                return self._room.distribute(module)(*args, **kwargs)
        return self.inner(*args, **kwargs)
