"""The outermost module that the user calls, where its parameters are sharded."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from dream._log import logger
from dream.adapters.pytorch.call_hook import CallHook, hook_of, set_hook, untransformed
from dream.adapters.pytorch.errors import peers_may_fail
from dream.adapters.pytorch.loss.backward import WeighedBackward
from dream.adapters.pytorch.loss.calls import Bearer
from dream.adapters.pytorch.module import DistributedModule, ModuleRegistry
from dream.adapters.pytorch.optimizer import Forward
from dream.adapters.pytorch.parallel.sharding.backward_starts import given_by, tell_given_nowhere
from dream.adapters.pytorch.parallel.sharding.parameters import SplitParameters
from dream.adapters.pytorch.parallel.sharding.state import (
    GUARD,
    PickleGuard,
    module_message,
)
from dream.adapters.pytorch.private import recomputing, to_local, version_of
from dream.adapters.pytorch.update import batch_norm
from dream.data.partition import Share

_UNSTEPPED = 3
"""Backward passes after which somebody has stepped what no optimizer of torch's has."""


@final
class BackwardMessage:
    """The few numbers that a backward pass tells all ranks, on their way beside its gradients.
    group: the ranks; None where that is one."""

    def __init__(self, group: ProcessGroup | None) -> None:
        self._group = group
        self._numbers = torch.zeros(())
        self._work: distributed.Work | None = None

    def send(self, numbers: torch.Tensor, *, first: bool, last: bool) -> None:
        """Add up those of an update's parts, and set out with the last: before backward, whose time
        it takes no part of. A message of its own: another module of the same loss sends it too."""
        self._numbers = numbers.clone() if first else self._numbers + numbers
        if last and self._group is not None:
            work = distributed.all_reduce(self._numbers, group=self._group, async_op=True)
            self._work = work

    def received(self) -> torch.Tensor:
        """Return their mean over the ranks."""
        if self._work is not None:
            with peers_may_fail("the loss of a step"):
                self._work.wait()
            self._work = None
            self._numbers.div_(distributed.get_world_size(self._group))
        return self._numbers


@final
@dataclass(frozen=True, slots=True)
class ShardContext:
    """What the modules of one strategy are sharded with.

    mesh: the ranks that hold the shards. dealt_to: those that batches are dealt to; None where that
    is one. parameters: those that shards took the place of.
    """

    parameters: SplitParameters
    backward: WeighedBackward
    mesh: DeviceMesh
    device: torch.device
    dealt_to: ProcessGroup | None


class ShardedModule(DistributedModule, Bearer):
    """Takes the calls of one module whose parameters are spread over the ranks.

    The module keeps its name and its place; its parameters are new ones, in shards.

    sharded: the parameters that were sharded, or left whole on purpose, by id. pickled_whole:
    whether an ordinary module can be made of it; else it is not pickled.
    """

    pickled_whole = False

    def __init__(
        self,
        module: nn.Module,
        registry: ModuleRegistry,
        inner: Forward | None,
        context: ShardContext,
    ) -> None:
        super().__init__(module, registry, inner)
        self._backward, self._parameters = context.backward, context.parameters
        self._mesh, self._device = context.mesh, context.device
        self._message = BackwardMessage(context.dealt_to)
        self.sharded: dict[int, nn.Parameter] = {}
        self._ready = False
        self._norms = batch_norm.norms(module)
        self._number = 0  # of the update that gradients were last gathered for
        self._begins = self._completes = True
        self._waits = self._came = False
        self._unstepped: tuple[int, list[int]] = (0, [])  # passes since, and versions

    @abstractmethod
    def shard(self) -> None:
        """Shard what is not sharded yet, in place."""

    @abstractmethod
    def accumulate(self, *, fresh: bool, completes: bool) -> None:
        """Begin a part of an update. fresh: its first. completes: whether the gradient is whole
        with it, and is to be added up over the ranks."""

    @property
    def trained(self) -> list[nn.Parameter]:
        """Return the parameters that backward passes leave gradients in."""
        return [*self.sharded.values()]

    @property
    def meets(self) -> bool:
        return True

    @property
    def waits(self) -> bool:
        """Until the next call, in the block: several backward passes may follow one."""
        return self._waits

    @property
    def completes(self) -> bool:
        return self._completes

    def send(self, message: torch.Tensor) -> None:
        self._message.send(message, first=self._begins, last=self._completes)

    def received(self) -> torch.Tensor:
        return self._message.received()

    def reshard(self) -> None:
        """Let go of what was gathered, after calls that no backward follows."""

    def prepare(self) -> None:
        """Shard the module; what was put in since is sharded too."""
        if self._ready and all(id(p) in self.sharded for p in self.module.parameters()):
            return
        self.registry.settle(self.module)
        kept = self._backward.script_hooks.kept(self.module)
        with self._parameters.replacing(self.module), kept:  # which reads the old ones' hooks
            self.split()
        self.registry.begin(self.module)

    def split(self) -> None:
        """Shard it and take its calls."""
        self.registry.inside = True  # what a look at a forward pass calls is no training
        try:
            self.shard()
        finally:
            self.registry.inside = False
        self.claim()
        self.take_options()
        self._norms = [n for n in batch_norm.norms(self.module) if n not in self.synchronised]
        self._ready = True

    def claim(self) -> None:
        """Have the calls of the module and of its parts come here, whoever took them before."""
        for part in self.module.modules():
            set_hook(part, self if part is self.module else SubmoduleCall(part, self))
            if self.pickled_whole:
                continue
            others = {name: value for name, value in vars(part).items() if name != GUARD}
            vars(part).clear()  # a pickler is to meet the mark before hooks that it cannot take
            vars(part).update({GUARD: PickleGuard(module_message(type(part).__name__))} | others)

    def release(self) -> None:
        """The module is a part now: the whole one's root finds it sharded."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._ready:
            self.prepare()
        return self.run(self.inner, args, kwargs)

    def run(self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call by the user's loop, of the module or a part; or one by the model itself."""
        registry = self.registry
        if registry.inside:
            return forward(*args, **kwargs)
        if recomputing():
            return registry.training.call(forward, args, kwargs)
        if not torch.is_grad_enabled():
            return self._without_gradients(forward, args, kwargs)
        untransformed(registry.communicator.world_size, any_within=True)
        if registry.training.scaling is not None:
            registry.training.scaling.loop_calls()
        share = registry.shares.of((*args, *kwargs.values()))
        if registry.updates is not None:
            completes = registry.updates.begin(share, self.module)
            self._begin_micro(begins=share is None or share.micro == 0, completes=completes)
        self._backward.lend()
        return self.train(forward, args, kwargs, share)

    def call_part(
        self, share: Share | None, args: tuple[Any, ...], *, first: bool, last: bool
    ) -> Any:
        """Run a call by an explicit step, on one of an update's micro-batches. Only the last one's
        backward adds gradients up over the ranks."""
        if not self._ready:
            self.prepare()
        if self.registry.updates is not None:
            self._begin_micro(begins=first, completes=last)
        return self.train(self.inner, args, {}, share)

    def run_submodule(
        self, part: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a call of a part by itself."""
        return self.run(forward, args, kwargs)

    def train(
        self,
        forward: Forward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        share: Share | None,
    ) -> Any:
        """Run a training call. share: of the batch that it is on."""
        if self._came:
            self._waits = self._came = False
            self._tell_unstepped()
        called = self._backward.called(self, share, args, kwargs)
        share = called.share
        empty = share is not None and share.count == 0
        self._waits = True

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call(forward, args, kwargs, share, empty=empty)

        output = self.registry.training.call(call, args, kwargs)
        called.mark(output)
        if self._completes:
            self._settle_statistics()
        leaves = given_by(self.module, output)
        if not leaves:
            tell_given_nowhere(self.module, output)
            self.reshard()
            self.backwards.came()
            self._waits = False
        for leaf in leaves:
            if not leaf.is_leaf:
                leaf.register_hook(self.note_backward)
        return output

    def _tell_unstepped(self) -> None:
        """Say once that backward passes come and go, and nothing steps the parts."""
        passes, before = self._unstepped
        own = [*self.trained, *self.module.parameters()]  # where another root has sharded them
        if passes >= _UNSTEPPED or self._parameters.are_stepped(own):
            return
        versions = [version_of(to_local(p)) for p in self.trained]
        changed = bool(before) and versions != before
        self._unstepped = (_UNSTEPPED + 1 if changed else passes + 1, versions)
        if self._unstepped[0] == _UNSTEPPED:
            logger.info(
                "nothing has stepped %s in %d backward passes: what is no optimizer of torch's, "
                "and took the parameters before the model was split, trains nothing. Use one of "
                "torch's, or 'mirrored'",
                type(self.module).__name__,
                _UNSTEPPED,
            )

    def _begin_micro(self, *, begins: bool, completes: bool) -> None:
        """Have the next gradients count to the update that the strategy is at."""
        updates = self.registry.updates
        assert updates is not None
        fresh, self._number = updates.number != self._number, updates.number
        self._begins, self._completes = begins, completes
        self.accumulate(fresh=fresh, completes=completes)

    def trains(self) -> bool:
        """Tell whether a part that is called now is called by a training call of the whole."""
        return torch.is_grad_enabled() and super().trains()

    def _without_gradients(
        self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run outside inference_mode, whose tensors could never be trained with: parameters may be
        among them."""
        beside, self.registry.inside = self.registry.beside(self.module), True
        try:
            with beside, torch.inference_mode(False), torch.no_grad():
                return self.registry.training.call_beside(self.module, forward, args, kwargs)
        finally:
            self.registry.inside = False
            self.reshard()

    def note_backward(self, _: torch.Tensor) -> None:
        self.backwards.came()
        self._came = True
        self._waits = self._backward.installed

    def _settle_statistics(self) -> None:
        for synced in self.synchronised.values():
            synced.settle()
        running = batch_norm.running(self._norms) if self._norms else []
        if running:
            means = self.registry.communicator.all_reduce(running)
            for buffer, mean in zip(running, means, strict=True):
                buffer.copy_(mean)


@final
class SubmoduleCall(CallHook):
    """Takes the calls of a part of a sharded module that may be called by itself."""

    def __init__(self, module: nn.Module, root: ShardedModule) -> None:
        inner = hook_of(module).inner if isinstance(hook_of(module), CallHook) else None
        super().__init__(module, inner)
        self.root = root

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.root.registry.inside or recomputing():
            return self.inner(*args, **kwargs)
        return self.root.run_submodule(self.module, self.inner, args, kwargs)
