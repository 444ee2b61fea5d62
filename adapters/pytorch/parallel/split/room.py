"""The modules of a strategy that splits them: those made in the block, and those split so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, final
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from dream._errors import Unsupported
from dream._layout import check_same
from dream.adapters.pytorch import buffers, randomness
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.keras.entry import refuse_keras
from dream.adapters.pytorch.layout import layout_of, refuse_uninitialised
from dream.adapters.pytorch.parallel.split.meta import is_meta
from dream.adapters.pytorch.parallel.split.root import Forward, SplitRoot, claim, cut_like
from dream.adapters.pytorch.reducing import recomputing
from dream.adapters.pytorch.slot import Slot, set_slot, slot_of
from dream.adapters.pytorch.update.precision import Precision
from dream.adapters.pytorch.update.recompute import How
from dream.adapters.pytorch.update.updates import Updates
from dream.collectives import Communicator

MakeRoot = Callable[[nn.Module, "Room", Forward | None], SplitRoot]


@final
class Room:
    """The modules of one strategy.

    world: all ranks; dealt: those that batches are dealt to. draws: by how much this rank's random
    numbers are moved, once the first module is split.
    inside: a split module is running, so those it calls are its parts.
    called: one was called in training, and no backward has come to it since.
    updates: where the loop is, where its batches come in micro-batches; else None.
    precision: what models are called in, where that is not float32.
    synchronises: BatchNorm normalises by all ranks' samples. recomputes: which layers are.
    replaced: the new parameter for each old one that is still held somewhere.
    """

    def __init__(
        self,
        name: str,
        world: Communicator,
        dealt: Communicator,
        shares: Shares,
        draws: int,
        make: MakeRoot,
        updates: Updates | None = None,
        precision: Precision | None = None,
        *,
        synchronises: bool = False,
        recomputes: How = False,
    ) -> None:
        self.name = name
        self.world = world
        self.dealt = dealt
        self.shares = shares
        self.inside = False
        self.called = False
        self.updates = updates
        self.precision = precision
        self.synchronises = synchronises and dealt.world_size > 1
        self.recomputes = recomputes
        self.roots: WeakSet[SplitRoot] = WeakSet()
        self.replaced: Any = WeakTensorKeyDictionary()
        self.followers: list[Callable[[], None]] = []
        self._made: WeakKeyDictionary[nn.Module, None] = WeakKeyDictionary()
        self._draws = draws
        self._make = make
        self._begun = False
        self._masters = None if precision is None else precision.masters

    def wrap_init(self, init: Callable[..., None]) -> Callable[..., None]:
        """`Module.__init__` that has the module's calls looked at."""

        @wraps(init)
        def wrapped(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            refuse_keras(module, self.name)
            init(module, *args, **kwargs)
            self._made[module] = None
            if self.world.world_size > 1:
                set_slot(module, Adopted(module, self))

        return wrapped

    def cast(self, module: nn.Module) -> None:
        """A module that is about to be cut is in its precision's type."""
        if self.precision is None:
            return
        if self._masters is not None and is_meta(module):
            raise Unsupported(
                "Master weights are kept of a model's first values, which are not there yet. "
                f"Received: precision='O2' and {type(module).__name__} on the meta device. Make it "
                "on its real device, or use precision='float16'."
            )
        self.precision.cast(module)

    def apart(self, module: nn.Module) -> list[nn.Module]:
        """The parts whose parameters are of another type than the rest."""
        return [] if self.precision is None else self.precision.apart(module)

    def split(self, module: nn.Module) -> SplitRoot:
        """The module's root, made on first use; what was put in since is split too."""
        root = slot_of(module)
        if not isinstance(root, SplitRoot):
            refuse_keras(module, self.name)
            root = self._make(module, self, root.inner if isinstance(root, Slot) else None)
        if root not in self.roots or any(id(p) not in root.parts for p in module.parameters()):
            self._split(root)
        return root

    def split_owners(self, parameters: Iterable[torch.Tensor]) -> None:
        """Split the outermost modules made in the block that hold any of the parameters."""
        wanted = {id(parameter) for parameter in parameters}
        within = {id(child) for module in self._made for child in module.children()}
        several = self.world.world_size > 1
        for module in list(self._made):
            holds = any(id(parameter) in wanted for parameter in module.parameters())
            if holds and id(module) not in within and (several or is_meta(module)):
                self.split(module)

    def gathering(self) -> list[nn.Parameter]:
        """What backward passes leave gradients in."""
        return [parameter for root in self.roots for parameter in root.gathering]

    def parts(self) -> dict[int, SplitRoot]:
        """The root of each parameter that is split, by the parameter's id, or its master's."""
        found = {key: root for root in self.roots for key in root.parts}
        if self._masters is not None:
            for root in self.roots:
                masters = map(self._masters.of, root.parts.values())
                found |= {id(master): root for master in masters if master is not None}
        return found

    def rest(self) -> None:
        """Have every module's parameters be parts."""
        for root in self.roots:
            root.rest()

    def _split(self, root: SplitRoot) -> None:
        module = root.module
        refuse_uninitialised(module)
        check_same(self.world.all_gather_object(layout_of(module)))
        self._start_as_rank_0(module)
        old = dict(module.named_parameters(remove_duplicate=False))
        for part in module.modules():
            if isinstance(slot_of(part), SplitRoot):
                self.roots.discard(slot_of(part))
        self.inside = True  # what a look at a forward pass calls is no training
        try:
            root.cut()
        finally:
            self.inside = False
        if self.world.world_size > 1:
            claim(root)
            root.take_knobs()
        self.roots.add(root)
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if parameter is not old[name]:
                self.replaced[old[name]] = parameter
                if self._masters is not None:
                    self._masters.move(old[name], parameter, cut_like)
        if not self._begun:
            self._begun = True
            randomness.offset_by(self._draws)
        if self.dealt.world_size > 1 and not self.synchronises:
            buffers.tell_local_statistics(module)
        for follow in self.followers:
            follow()

    def _start_as_rank_0(self, module: nn.Module) -> None:
        """Rank 0's parameters and buffers, written only where they differ."""
        own = [
            tensor.detach()
            for tensor in (*module.parameters(), *module.buffers())
            if type(tensor.data) is torch.Tensor and not tensor.is_meta
        ]
        if own:
            for tensor, first in zip(own, self.world.broadcast(own), strict=True):
                if not torch.equal(tensor, first):
                    tensor.copy_(first)


@final
class Adopted(Slot):
    """Takes the calls of a module made in the block until it is known whose part it is.

    copied: the module is a copy of a split one, and can only be called once it is split itself.
    """

    def __init__(self, module: nn.Module, room: Room, *, copied: bool = False) -> None:
        super().__init__(module)
        self._room = room
        self._copied = copied

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._room.inside and not recomputing() and self._is_trained():
            return self._room.split(self.module)(*args, **kwargs)
        return self.inner(*args, **kwargs)

    def _is_trained(self) -> bool:
        if not torch.is_grad_enabled():
            return self._copied
        return any(parameter.requires_grad for parameter in self.module.parameters())
