"""What the strategies share that hold a model in shards."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MethodType
from typing import Any
from weakref import WeakSet

import torch
from numpy.typing import NDArray
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import LBFGS, Optimizer

from dream._adapter import Loss, Metric, Plan, Step, Weight
from dream._log import logger
from dream._topology import Mesh
from dream.adapters.pytorch import devices, evaluate
from dream.adapters.pytorch.call_hook import wrap_compile
from dream.adapters.pytorch.drift import DriftGuard
from dream.adapters.pytorch.hooks import BackwardLent, Hooks
from dream.adapters.pytorch.loose_parameters import LooseParameters
from dream.adapters.pytorch.loss.backward import WeighedBackward
from dream.adapters.pytorch.loss.differentiate import RowGradients
from dream.adapters.pytorch.loss.divisors import noting_floors
from dream.adapters.pytorch.loss.scaling import count_by_hand
from dream.adapters.pytorch.module import ModuleRegistry
from dream.adapters.pytorch.optimizer import Forward, parameters_of
from dream.adapters.pytorch.parallel.base import HONOURED, Parallelism, Participants
from dream.adapters.pytorch.parallel.ddp.parallelism import Ddp, WeighedLoss
from dream.adapters.pytorch.parallel.sharding import operations, saving, state
from dream.adapters.pytorch.parallel.sharding.gradients import (
    SpreadGradients,
    clipping_norm,
    clipping_value,
)
from dream.adapters.pytorch.parallel.sharding.mesh_placement import MeshPlacement, connect, mesh_of
from dream.adapters.pytorch.parallel.sharding.meta import MetaInitializer, is_meta
from dream.adapters.pytorch.parallel.sharding.module import ShardContext, ShardedModule
from dream.adapters.pytorch.parallel.sharding.parameters import SplitParameters, shard_like
from dream.adapters.pytorch.parallel.sharding.step import refuse_dtensor, starting_anywhere
from dream.adapters.pytorch.private import LBFGS_ADDS, LBFGS_GATHERS, to_local, to_whole
from dream.adapters.pytorch.train_step import Cuts, MicroParts, Passes
from dream.adapters.pytorch.update.norms_beside import NormsBeside
from dream.collectives import Communicator
from dream.strategies import registry
from dream.update.update import UpdateOptions


class Sharding(Parallelism):
    """Modules made in the block are sharded when an optimizer is given their parameters, or when
    they are first trained; the optimizer is given the shards.

    Batches are dealt along the data axis: ranks that hold parts of one copy get the same share.

    parameters: those that shards took the place of. alone: there is one rank, and nothing to
    shard; a model made on the meta device gets its memory.
    """

    supports = HONOURED
    whole = False
    chooses = True
    placement: MeshPlacement

    def __init__(self, plan: Plan) -> None:
        self.supports_for = f"A model that {plan.spec.name!r} splits"
        super().__init__(plan)
        self._dtensors = operations.in_the_block()
        self._lent = BackwardLent(self._dtensors)
        self.alone = self.placement.mesh.size == 1 and not offloads(plan)
        self.registry = ModuleRegistry(
            self.make, self.dealt, self.shares, self.training,
            synchronises=self.update_options.synchronises, recomputes=self.update_options.recompute,
            memory_budget=self.update_options.memory_budget, world=self.world, takes_meta=True,
            draws=self.draws,
        )  # fmt: skip
        self.parameters = SplitParameters(self.registry)
        self._guard = DriftGuard(  # of buffers and hyperparameters
            self.world, self._modules, masters=self.training.masters
        )
        self._guarded: WeakSet[Optimizer] = WeakSet()
        self.backward = WeighedBackward(
            self.dealt, self.training.updates, strict=self.update_options.strict, lent=self._lent,
            within=self.within_backward,
        )  # fmt: skip
        self.registry.row_leaves = self._guard.rows = self.backward.row_leaves
        self._bare = LooseParameters(self.registry, self.shares, self.backward.waits)
        self.backward.beside = self._bare.multiply
        if self.training.updates is None:
            self._bare.weighed = self.backward
        self._context = None if self.alone else self._make_context()

    @abstractmethod
    def make_mesh(self) -> tuple[DeviceMesh, ProcessGroup | None]:
        """Return the ranks that hold the shards, and those that batches are dealt to, or None where
        that is one. Called where there are several ranks."""

    @abstractmethod
    def make(
        self, module: nn.Module, registry: ModuleRegistry, inner: Forward | None
    ) -> ShardedModule:
        """Make what shards a module and takes its calls."""

    @property
    def context(self) -> ShardContext:
        """What modules are sharded with. Asked for where there are several ranks."""
        assert self._context is not None
        return self._context

    def mesh(self) -> Mesh:
        """Return the mesh of the ranks."""
        return mesh_of(self.plan)

    def dealt_to(self, placement: MeshPlacement) -> Communicator:
        """Return the ranks that batches are dealt to."""
        return placement.data

    def connect(self) -> Participants:
        device = devices.choose(self.plan)
        self.placement = own = connect(self.plan, self.mesh())
        told_by = own.world if own.mesh.model > 1 else None
        spread = SpreadGradients(own.world)
        return Participants(own.world, device, self.dealt_to(own), told_by, spread=spread)

    @property
    def roots(self) -> list[ShardedModule]:
        return [root for root in self.registry.roots if isinstance(root, ShardedModule)]

    def _modules(self) -> list[nn.Module]:
        return [root.module for root in sorted(self.roots, key=lambda root: root.number)]

    def within_backward(self, backward: Callable[..., None]) -> Callable[..., None]:
        """Wrap torch's own backward pass, beneath what weighs it."""
        return starting_anywhere(backward)

    def subscribe(self, hooks: Hooks) -> None:
        hooks.made("module", self.parameters.add)
        hooks.making("optimizer", lambda _: self.reshard())
        hooks.made("optimizer", self._shard_for)
        if self.alone:
            return
        hooks.made("module", self.registry.add)
        saving.begin(self.world)
        hooks.wrap("save", saving.saving_wholes)
        hooks.wrap("backward", self._bare.wrap)
        hooks.wrap("backward", self.backward.wrap)
        hooks.wrap("clamp", noting_floors)
        hooks.wrap("grad", RowGradients(self.backward, self.dealt).wrap)
        if self.registry.synchronises:
            hooks.wrap("batch_norm", NormsBeside(self.registry).wrap)
        self.backward.script_hooks.subscribe(hooks)
        self.shares.follow_by(self.backward.reader)
        hooks.wrap("compile", wrap_compile)
        hooks.wrap("clip_norm", clipping_norm)
        hooks.wrap("clip_value", clipping_value)

    def take_hooks(self, items: Iterable[nn.Module | torch.Tensor]) -> None:
        if not self.alone:
            self.backward.script_hooks.take(items)

    def opened(self) -> None:
        self.backward.open(installed=not self.alone)
        if not self.alone:
            self._dtensors.put()

    def closed(self) -> None:
        self.backward.close()
        self._dtensors.take_back()

    def hear_last(self) -> None:
        self.backward.hear_late()

    def expect(self, objects: Sequence[Any]) -> None:
        """Take optimizers first, so that they follow what becomes of the parameters."""
        for item in objects:
            if isinstance(item, Optimizer):
                self.adopt(item)

    def distribute(self, module: nn.Module) -> nn.Module:
        if not self.alone:
            self.registry.distribute(module).prepare()
        elif is_meta(module):
            with self.parameters.replacing(module):
                MetaInitializer(module).fill(module, self.device, self.world)
        return module

    def adopt(self, optimizer: Optimizer) -> None:
        self.parameters.take(optimizer)
        if not self.alone and optimizer not in self._guarded:
            self._guarded.add(optimizer)
            self._guard.watch(optimizer)
            take_vectors(optimizer)

    def reshard(self) -> None:
        """Have every module's parameters be shards."""
        for root in self.roots:
            root.reshard()

    def train_step(
        self, model: nn.Module, loss: Loss, optimizer: Optimizer, weight: Weight | None
    ) -> Step:
        self.adopt(optimizer)
        self.distribute(model)
        return super().train_step(model, loss, optimizer, weight)

    def forward_backward(
        self, model: nn.Module, loss: Loss, weight: Weight | None
    ) -> Passes | None:
        if self.alone:
            return None
        root = self.registry.distribute(model)
        assert isinstance(root, ShardedModule)
        return WeighedLoss(root, loss, self.backward, self.training.scaling)

    def cuts(self, weight: Weight | None) -> Cuts:
        return MicroParts(self.training.most, self.shares, weight)

    def evaluate(
        self, model: nn.Module, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        device = self.computes_on
        return evaluate.evaluate(model, data, metrics, self.dealt, together=True, device=device)

    def weigh(self, loss: Any, count: float) -> Any:
        refuse_dtensor(loss)
        return loss if self.alone else count_by_hand(loss, count)

    def full_state(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        self.reshard()
        return state.full_state(model)

    def loss_weight(self) -> float | None:
        """A loss is global once its backward has ended."""
        return 1.0 if self.alone else None

    def _make_context(self) -> ShardContext:
        mesh, dealt_to = self.make_mesh()
        return ShardContext(self.parameters, self.backward, mesh, self.device, dealt_to)

    def _shard_for(self, optimizer: Optimizer) -> None:
        """Shard the modules that hold the parameters of an optimizer made in the block."""
        for module in self.parameters.owners(optimizer):
            self.distribute(module)
        self.adopt(optimizer)


_SPLITS: Mapping[object, str] = {
    "tensor": "dream.adapters.pytorch.parallel.tensor.parallelism:TensorParallel",
    "pipeline": "dream.adapters.pytorch.parallel.pipeline.parallelism:PipelineParallel",
    "layers": "dream.adapters.pytorch.parallel.layers:LayersOnDevices",
    "layers of ranks": "dream.adapters.pytorch.parallel.layers_of_ranks:LayersOfRanks",
}


def model_parallel(plan: Plan) -> Parallelism:
    """Make `model_parallel` and `hybrid`, by how the model is split."""
    split = plan.options["split"]
    if split != "layers" and shards_nothing(plan):
        return Ddp(plan)
    if split == "layers" and not plan.cluster.alone:
        split = "layers of ranks"
    made: Parallelism = registry.load(_SPLITS[split])(plan)
    return made


def shards_nothing(plan: Plan) -> bool:
    """Tell whether there is one rank, which shards nothing, and an option to honour."""
    return plan.cluster.alone and UpdateOptions.of(plan.options).asked and not offloads(plan)


def offloads(plan: Plan) -> bool:
    """Tell whether shards are to lie on the host, which one rank's do too."""
    return bool(plan.options.get("cpu_offload"))


def take_vectors(optimizer: Optimizer) -> None:
    """Have an L-BFGS gather its gradients and step shards, and say what else shards change; nothing
    for others."""
    if type(optimizer).__name__ == "Muon":
        logger.info(
            "Muon makes its matrices orthogonal in bfloat16: under a sharded model those sums are "
            "rounded in another order, so its weights are those of one device to some 1e-3, not to "
            "1e-6; 'mirrored' keeps them"
        )
    if isinstance(optimizer, LBFGS):
        logger.info(
            "L-BFGS looks at all parameters at once: its history is whole on every rank, and not "
            "in shards"
        )
        setattr(optimizer, LBFGS_GATHERS, MethodType(_gathered, optimizer))
        setattr(optimizer, LBFGS_ADDS, MethodType(_add, optimizer))


def _gathered(optimizer: Optimizer) -> torch.Tensor:
    return torch.cat([_vector(parameter) for parameter in parameters_of(optimizer)])


def _vector(parameter: nn.Parameter) -> torch.Tensor:
    gradient = parameter.grad
    if gradient is None:
        return to_local(parameter).new_zeros(parameter.numel())
    return to_whole(gradient).reshape(-1)


def _add(optimizer: Optimizer, size: Any, direction: torch.Tensor) -> None:
    parameters: Sequence[nn.Parameter] = parameters_of(optimizer)
    parts = direction.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        own = to_local(shard_like(part.view(parameter.shape), parameter))
        to_local(parameter).add_(own, alpha=size)
