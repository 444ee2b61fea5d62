"""`sharded`: parameters, gradients and optimizer state in shards, by FSDP2."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cache, partial, wraps
from typing import Any, final

import torch
from torch import distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.optim import Optimizer

from dream._adapter import Plan
from dream._topology import Mesh
from dream.adapters.pytorch import collectives
from dream.adapters.pytorch.call_hook import STATE, hook_of, set_hook
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.module import ModuleRegistry
from dream.adapters.pytorch.optimizer import Forward
from dream.adapters.pytorch.parallel.base import Parallelism
from dream.adapters.pytorch.parallel.ddp.parallelism import Ddp
from dream.adapters.pytorch.parallel.fsdp import differentiate, private
from dream.adapters.pytorch.parallel.fsdp.copies import PendingCopy
from dream.adapters.pytorch.parallel.fsdp.differentiate import AskedGradients, ShardGradients
from dream.adapters.pytorch.parallel.fsdp.gathered import clearing, stand_for
from dream.adapters.pytorch.parallel.fsdp.offload import Offload
from dream.adapters.pytorch.parallel.fsdp.pickled import OrdinaryState, StayGathered, pickled
from dream.adapters.pytorch.parallel.fsdp.supported import (
    ForwardWrites,
    begin_at_hidden,
    check_all_sharded,
    check_dtypes,
    check_runs_first,
    check_supported,
    without_views,
)
from dream.adapters.pytorch.parallel.fsdp.units import (
    Owned,
    Prefetch,
    UnitOrder,
    callable_itself,
    gathers_of,
    make_whole,
    units_of,
    unsharded,
)
from dream.adapters.pytorch.parallel.fsdp.zero1 import ZeroOne
from dream.adapters.pytorch.parallel.sharding.mesh_placement import MeshPlacement, shards_mesh_of
from dream.adapters.pytorch.parallel.sharding.meta import MetaInitializer, is_meta
from dream.adapters.pytorch.parallel.sharding.module import (
    ShardContext,
    ShardedModule,
    SubmoduleCall,
)
from dream.adapters.pytorch.parallel.sharding.parallelism import Sharding, shards_nothing
from dream.adapters.pytorch.parallel.sharding.parameters import (
    copy_shards,
    shard_loaded,
)
from dream.adapters.pytorch.private import current_backward
from dream.collectives import Communicator


def sharded(plan: Plan) -> Parallelism:
    """Make `sharded`, by what is sharded."""
    if shards_nothing(plan):
        return Ddp(plan)
    return ZeroOne(plan) if plan.options["zero"] == 1 else FullySharded(plan)


@final
class FullySharded(Sharding):
    """FSDP2. Shards lie along the mesh's model axis; every rank has its own share of a batch."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._kept = False
        self._offload = Offload(self.device) if plan.options["cpu_offload"] else None
        self.computes_on = self.device if self._offload else None
        self.backward.stamped = self._order = UnitOrder(self.dealt)

    def mesh(self) -> Mesh:
        return shards_mesh_of(self.plan)

    def dealt_to(self, placement: MeshPlacement) -> Communicator:
        return placement.world

    def subscribe(self, hooks: Hooks) -> None:
        super().subscribe(hooks)
        if not self.alone:
            hooks.wrap("grad", self._differentiable)
            hooks.wrap("backward", self._order.before)
            hooks.wrap("zero_grad", clearing)

    def adopt(self, optimizer: Optimizer) -> None:
        known = optimizer in self._guarded
        super().adopt(optimizer)
        if not (known or self.alone):
            optimizer.register_step_pre_hook(self._give_up)

    def make(
        self, module: nn.Module, registry: ModuleRegistry, inner: Forward | None
    ) -> FullyShardedModule:
        reshard = self.plan.options["zero"] == 3
        return FullyShardedModule(
            module,
            registry,
            inner,
            self.context,
            reshard=reshard,
            offload=self._offload,
            prefetch=Prefetch(self.plan.options["prefetch"]),
        )

    def make_mesh(self) -> tuple[DeviceMesh, ProcessGroup | None]:
        mesh = self.placement.mesh
        collectives.start_group(self.plan.cluster, self.plan.reduction)  # of one rank, too
        shape = (
            {"shard": mesh.model} if mesh.data == 1 else {"replica": mesh.data, "shard": mesh.model}
        )
        made = init_device_mesh(self.device.type, (*shape.values(),), mesh_dim_names=(*shape,))
        return made, distributed.group.WORLD

    def _differentiable(self, grad: Callable[..., Any]) -> Callable[..., Any]:
        """Have `torch.autograd.grad` take gradients by shards, and keep the parameters where its
        result may be differentiated, until that has been."""
        shards = ShardGradients(self._trained, cut=self.training.updates is not None)

        @wraps(grad)
        def kept(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            asked = AskedGradients(*args, **kwargs)
            inputs = [*inputs] if isinstance(inputs, Iterator) else inputs
            one = isinstance(inputs, torch.Tensor)
            wanted = [*map(self.parameters.now, [inputs] if one else inputs)]
            if shards.concerns(wanted):
                return shards.take(outputs, wanted, asked)
            if asked.create_graph and not self._kept:
                self._keep_gathered(True)
            return grad(outputs, inputs, *args, **kwargs)

        return kept

    def within_backward(self, backward: Callable[..., None]) -> Callable[..., None]:
        """Have gradients that waited for the pass's end be added up, and what was kept given up."""
        run = super().within_backward(backward)

        @wraps(backward)
        def ended(*args: Any, **kwargs: Any) -> None:
            differentiate.refuse_some(kwargs.get("inputs"), self.parameters.now, self._trained)
            run(*args, **kwargs)
            if self._kept and current_backward() == -1:
                self._keep_gathered(False)
                for root in self._sharded_roots():
                    root.reduce_waiting()
                self.reshard()

        return ended

    def _give_up(self, *_: Any) -> None:
        """Let go of what was kept; before a step at the latest, which changes the shards alone."""
        if self._kept:
            self._keep_gathered(False)
            self.reshard()

    def _keep_gathered(self, keep: bool) -> None:
        self._kept = keep
        for root in self._sharded_roots():
            root.keep_gathered(keep)

    def _trained(self) -> list[nn.Parameter]:
        return [parameter for root in self._sharded_roots() for parameter in root.trained]

    def _sharded_roots(self) -> list[FullyShardedModule]:
        return [root for root in self.roots if isinstance(root, FullyShardedModule)]


@final
class FullyShardedModule(ShardedModule):
    """A module whose parameters FSDP2 shards.

    reshard: whether gathered parameters are given up between forward and backward. offload:
    where shards lie on the host.
    """

    pickled_whole = True

    def __init__(
        self,
        module: nn.Module,
        registry: ModuleRegistry,
        inner: Forward | None,
        context: ShardContext,
        *,
        reshard: bool,
        offload: Offload | None = None,
        prefetch: Prefetch | None = None,
    ) -> None:
        super().__init__(module, registry, inner, context)
        self._prefetch = prefetch or Prefetch(None)
        self._reshard, self._offload = reshard, offload
        self._units: list[FSDPModule] = []
        self._resharded: list[FSDPModule] = []  # between forward and backward
        self._gathered: dict[int, nn.Parameter] = {}
        self._completes, self._keeps = True, False

    def shard(self) -> None:
        check_runs_first(self.module)
        check_supported(self.module)
        self.reshard()
        initializer = MetaInitializer(self.module) if is_meta(self.module) else None
        apart = self._parameters.cast(self.module)
        whole = not any(isinstance(part, FSDPModule) for part in self.module.modules())
        for unit in (*apart, *units_of(self.module)):
            self._shard(unit, reshard=self._reshard)
        if callable_itself(self.module) and (whole or unsharded(self.module)):
            self._shard(self.module, reshard=None if self._reshard else False)
        check_all_sharded(self.module)
        if initializer is not None:
            held = None if self._offload is None else self._offload.held
            initializer.fill(self.module, self._device, self.registry.world, held)
            self.sharded = _by_id(self.module)
        if isinstance(self.module, FSDPModule):
            private.know_root(self.module)

    def run_submodule(
        self, part: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a call of a part by itself: what is gathered with a whole is gathered for it alone,
        as where an encoder is called to write by its decoder."""
        if not torch.is_grad_enabled():
            for unit in gathers_of(part, self._units):
                unit.unshard()
        return super().run_submodule(part, forward, args, kwargs)

    def accumulate(self, *, fresh: bool, completes: bool) -> None:
        """Have whole gradients wait in what is gathered, until the update is complete."""
        if fresh:  # what is left there is of an update that was dropped
            for parameter in self._gathered.values():
                parameter.grad = None
        self._completes = completes
        self._synchronise()

    @property
    def trained(self) -> list[nn.Parameter]:
        return [*self.sharded.values(), *self._gathered.values()]

    def reshard(self) -> None:
        self._prefetch.forward_came(self._units)
        for unit in self._units:
            unit.reshard()

    def train(self, *args: Any, **kwargs: Any) -> Any:
        output = super().train(*args, **kwargs)
        self._prefetch.forward_came(self._units)
        return output

    def note_backward(self, gradient: torch.Tensor) -> None:
        super().note_backward(gradient)
        self._prefetch.backward_came(self.module)

    def keep_gathered(self, keep: bool) -> None:
        """Leave what is gathered after a pass, for one through its gradients; or not.

        FSDP2 takes a unit's gradients for whole when its inputs' are there. On a GPU the nodes of a
        gradient's own graph come later than those (a thread numbers its nodes by itself), so that
        what they add to it would be lost: all wait for the end of the pass.
        """
        self._keeps = keep
        self._synchronise()
        for unit in self._units:
            unit.set_reshard_after_backward(not keep, recurse=False)
            if unit in self._resharded:
                unit.set_reshard_after_forward(not keep, recurse=False)

    def reduce_waiting(self) -> None:
        """Add up over the ranks what a backward pass left, where that completes an update."""
        if self._completes:
            private.end_backward(self._units)

    def _synchronise(self) -> None:
        for unit in self._units:
            unit.set_requires_gradient_sync(self._completes and not self._keeps, recurse=False)

    def claim(self) -> None:
        super().claim()
        for part in self.module.modules():
            if not isinstance(part, FSDPModule):  # which says so itself
                vars(part)[STATE] = OrdinaryState(part)

    def hook_of_copy(self, module: nn.Module) -> PendingCopy:
        """Make what takes the calls of a copy of the module, or of one of its parts."""
        return PendingCopy(module, self.registry)

    def _shard(self, module: nn.Module, *, reshard: bool | None) -> None:
        if isinstance(module, FSDPModule):
            return
        own = unsharded(module)
        make_whole(own)
        check_dtypes(module, own)
        writes, name = ForwardWrites(own), self._name_of(module)
        module.register_forward_hook(writes.ran)
        module.register_forward_hook(without_views)  # before FSDP2's own
        policy = None if self._offload is None else self._offload.policy
        module.register_forward_hook(begin_at_hidden)
        unit = fully_shard_in_place(module, self._mesh, reshard=reshard, offload=policy)
        spread = [getattr(part, name) for part, name in own]
        if self._offload is not None:
            self._offload.keep_penalties_off(spread)
        module.register_forward_pre_hook(partial(self._running, name, own, spread))
        module.register_forward_pre_hook(writes.runs)
        if isinstance(order := self._backward.stamped, UnitOrder):
            module.register_forward_pre_hook(partial(order.gathers, name), prepend=True)
        module.register_load_state_dict_pre_hook(shard_loaded)
        self._units.append(unit)
        if reshard:
            self._resharded.append(unit)
        self.sharded.update(_by_id(module))

    def _name_of(self, unit: nn.Module) -> str:
        found = (name for name, part in self.module.named_modules() if part is unit)
        return next(found, "") or type(unit).__name__

    def _running(
        self, name: str, own: Owned, spread: list[nn.Parameter], unit: FSDPModule, *_: Any
    ) -> None:
        """Know the parameters of a unit that is about to run, gathered. spread: those in shards."""
        order = self._backward.stamped
        if isinstance(order, UnitOrder) and torch.is_grad_enabled():
            order.ran(name)
            self._prefetch.ran(unit)
        for (module, name), shards in zip(own, spread, strict=True):
            parameter = getattr(module, name)
            stand_for(parameter, shards)
            if id(parameter) not in self._gathered:
                self._gathered[id(parameter)] = parameter
                if parameter.requires_grad:
                    self._backward.script_hooks.comes_by(parameter, shards)
                if self.registry.updates is not None:
                    self.registry.updates.held.watch([parameter])


def _by_id(module: nn.Module) -> dict[int, nn.Parameter]:
    return {id(parameter): parameter for parameter in module.parameters()}


_HALF = (torch.float16, torch.bfloat16)


def fully_shard_in_place(
    module: nn.Module,
    mesh: DeviceMesh,
    *,
    reshard: bool | None,
    offload: OffloadPolicy | None = None,
) -> FSDPModule:
    """Shard what is not sharded yet of a module's parameters, in place. reshard: whether they are
    given up between forward and backward; None for everywhere but at the root. Gradients in half
    precision are added up in float32."""
    half = any(p.dtype in _HALF for p in module.parameters())
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32 if half else None)
    fully_shard(
        module, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy,
        offload_policy=offload or OffloadPolicy(),
    )  # fmt: skip
    made: Any = type(module)
    module.__class__ = _named_as_before(made)
    assert isinstance(module, FSDPModule)
    for part in module.modules():
        if isinstance(part, nn.RNNBase):
            vars(part)["flatten_parameters"] = StayGathered()
    return module


@cache
def _named_as_before(made: Any) -> Any:
    return private.named_as_before(made, __deepcopy__=_copied, __reduce_ex__=pickled)


def _copied(module: Any, memo: dict[int, Any]) -> nn.Module:
    """Make an ordinary module with copies of this rank's shards, sharded where it is called."""
    module.reshard()
    original = private.original_class(module)
    made: nn.Module = original.__new__(original)
    memo[id(module)] = made
    copy_shards(module, memo)
    vars(made).update(copy.deepcopy(private.without_fsdp(vars(module)), memo))
    slot = hook_of(module)
    root = slot.root if isinstance(slot, SubmoduleCall) else slot
    if isinstance(root, FullyShardedModule):
        set_hook(made, root.hook_of_copy(made))
    return made
