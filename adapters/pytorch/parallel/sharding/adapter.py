"""What the strategies share that hold a model in shards."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from numpy.typing import NDArray
from torch import nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dream import _registry
from dream._adapter import Adapter, Metric, Plan, Step
from dream._errors import Unsupported
from dream._topology import Topology
from dream.adapters.pytorch import devices, evaluate
from dream.adapters.pytorch.adapter import TorchAdapter
from dream.adapters.pytorch.data.loader import LoaderSharder
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.hooks import Patches
from dream.adapters.pytorch.keras.entry import forbid_fits
from dream.adapters.pytorch.loss import MicroWeights, count_of, weight_of
from dream.adapters.pytorch.optimizer import Training
from dream.adapters.pytorch.parallel.ddp.parallelism import Ddp
from dream.adapters.pytorch.parallel.sharding import state
from dream.adapters.pytorch.parallel.sharding.gradients import SpreadGradients
from dream.adapters.pytorch.parallel.sharding.hooks import (
    hook_backward,
    hook_clipping,
    hook_compile,
    hook_loaders,
    hook_modules,
    hook_optimizers,
    hook_save,
)
from dream.adapters.pytorch.parallel.sharding.mesh_placement import MeshPlacement, connect, mesh_of
from dream.adapters.pytorch.parallel.sharding.meta import is_meta
from dream.adapters.pytorch.parallel.sharding.module import Forward, ShardedModule, UnshardedModule
from dream.adapters.pytorch.parallel.sharding.registry import ShardedOptimizers, ShardedRegistry
from dream.adapters.pytorch.parallel.sharding.step import ShardedPasses, refuse_dtensor
from dream.adapters.pytorch.train_step import cuts_of, plain_step, step_of
from dream.adapters.pytorch.update.gradients import Spread
from dream.collectives import Communicator
from dream.update.update import Knobs

HONOURED: Mapping[str, Collection[object]] = {
    "accumulate": (),
    "clip_norm": (),
    "clip_value": (),
    "precision": (),
    "recompute": (),
    "sync_batch_norm": (),
}


class ModelParallelAdapter(Adapter):
    """A strategy whose ranks hold parts of a model.

    Batches are dealt along the data axis: ranks that hold parts of one copy get the same share.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._knobs = Knobs.of(plan.options)
        self._check_knobs()
        self._device = devices.choose(plan)
        self._placement = self._connect(plan)
        self._topology = Topology.of(
            plan.cluster, num_replicas=self._dealt.world_size, device=str(self._device)
        )
        self._shares = Shares()
        ranks = self._dealt.world_size
        self._training = Training(self._knobs, self._device.type, ranks, self._spread())
        told_by = self._placement.world if self._placement.mesh.model > 1 else None
        self._dealer = LoaderSharder(
            self._dealt, self._shares, plan.seed, told_by=told_by, micros=self._training.micros
        )
        self._patches = Patches()

    def _connect(self, plan: Plan) -> MeshPlacement:
        """Find the rank's place in the strategy's mesh."""
        return connect(plan, mesh_of(plan))

    @abstractmethod
    def _check_knobs(self) -> None:
        """Refuse those that cannot be honoured."""

    @abstractmethod
    def _spread(self) -> Spread:
        """Return how gradients lie over the ranks when an optimizer steps."""

    @abstractmethod
    def _take_model(self, model: nn.Module) -> nn.Module:
        """Shard a model in place, or cut it."""

    @abstractmethod
    def _take_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Have an optimizer step this rank's part only."""

    @property
    def _dealt(self) -> Communicator:
        """Return the ranks that batches are dealt to."""
        return self._placement.data

    @property
    def topology(self) -> Topology:
        return self._topology

    @property
    def communicator(self) -> Communicator:
        return self._placement.world

    def enter(self) -> None:
        hook_loaders(self._patches, self._dealer)

    def exit(self) -> None:
        self._training.exit()
        self._patches.restore()

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        return tuple(self._prepare(item) for item in objects)

    def _prepare(self, item: Any) -> Any:
        if isinstance(item, DataLoader):
            self._dealer.deal(item)
        elif isinstance(item, nn.Module):
            return self._take_model(item)
        elif isinstance(item, Optimizer):
            return self._take_optimizer(item)
        return item

    def evaluate(
        self, model: nn.Module, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        return evaluate.evaluate(model, data, metrics, self._dealt)

    def weigh(self, loss: Any, count: Any) -> Any:
        raise Unsupported(
            f"Under {self._plan.spec.name!r} a loss is weighed by the step. Received: weigh(loss, "
            f"count={count!r}). Use strategy.train_step(model, loss, optimizer, weight=...)."
        )

    def loss_weight(self) -> float:
        return self._shares.weight(())


class ShardedAdapter(ModelParallelAdapter):
    """Modules made in the block are sharded when an optimizer is given their parameters, or when
    they are first trained; the optimizer is given the shards."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        updates, knobs = self._training.updates, self._knobs
        self._registry = ShardedRegistry(
            plan.spec.name,
            self._placement.world,
            self._dealt,
            self._shares,
            self._dealt.rank,
            self._make_unsharded if self._alone else self._make_module,
            updates,
            self._training.precision,
            synchronises=knobs.synchronises,
            recomputes=knobs.recompute,
        )
        self._training.watch(lambda: self._registry.called, self._registry.trained)
        self._micro = None if updates is None else MicroWeights(self._dealt, updates)
        self._optimizers = ShardedOptimizers(self._registry)

    @abstractmethod
    def _make_module(
        self, module: nn.Module, registry: ShardedRegistry, inner: Forward | None
    ) -> ShardedModule:
        """Make what shards a module and takes its calls."""

    def _check_knobs(self) -> None:
        self._knobs.only(HONOURED, f"A model that {self._plan.spec.name!r} splits")

    def _spread(self) -> Spread:
        return SpreadGradients(self._placement.world)

    @abstractmethod
    def _group(self) -> ProcessGroup | None:
        """Return the ranks that batches are dealt to; None where that is one."""

    def _make_unsharded(
        self, module: nn.Module, registry: ShardedRegistry, inner: Forward | None
    ) -> ShardedModule:
        return UnshardedModule(module, registry, inner, device=self._device)

    @property
    def _alone(self) -> bool:
        return self._placement.mesh.size == 1

    def enter(self) -> None:
        super().enter()
        patches, name = self._patches, self._plan.spec.name
        hook_optimizers(patches, self._optimizers.adopt, before=self._registry.reshard)
        hook_modules(patches, name, self._registry.adopt)
        if self._alone:
            return
        hook_save(patches)
        forbid_fits(patches, name)
        hook_backward(patches)
        hook_compile(patches)
        hook_clipping(patches)
        self._training.enter(patches)

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        """Prepare optimizers first, so that they follow what becomes of the parameters."""
        for item in objects:
            if isinstance(item, Optimizer):
                self._take_optimizer(item)
        return super().prepare(*objects)

    def _take_model(self, model: nn.Module) -> nn.Module:
        if not self._alone or is_meta(model):
            self._registry.shard(model)
        return model

    def _take_optimizer(self, optimizer: Optimizer) -> Optimizer:
        self._optimizers.take(optimizer)
        self._training.take(optimizer)
        return optimizer

    def train_step(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        optimizer: Optimizer,
        weight: Callable[..., Any] | None,
    ) -> Step:
        self.prepare(model, optimizer)
        if self._alone:
            return plain_step(model, loss, optimizer)
        cut = cuts_of(self._training.most, self._dealt, self._shares, weight)
        passes = ShardedPasses(
            self._registry.shard(model), loss, self._group(), self._training.scaling
        )
        return step_of(passes, optimizer, cut, self._training.updates)

    def evaluate(
        self, model: nn.Module, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        return evaluate.evaluate(model, data, metrics, self._dealt, together=True)

    def weigh(self, loss: Any, count: Any) -> Any:
        refuse_dtensor(loss)
        counted = count_of(count)
        for root in self._registry.roots:
            root.weigh_by_hand(counted)
        if self._micro is not None:
            return self._micro.weigh(loss, counted)
        return loss * weight_of(self._dealt, counted)

    def full_state(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        self._registry.reshard()
        return state.full_state(model)


_SPLITS: Mapping[object, str] = {
    "tensor": "dream.adapters.pytorch.parallel.tensor.adapter:TensorParallel",
    "pipeline": "dream.adapters.pytorch.parallel.pipeline.adapter:PipelineParallel",
    "layers": "dream.adapters.pytorch.parallel.layers:LayersOnDevices",
}


def model_parallel(plan: Plan) -> Adapter:
    """Make the adapter of `model_parallel` and `hybrid`, by how the model is split."""
    if plan.options["split"] != "layers" and shards_nothing(plan):
        return TorchAdapter(Ddp(plan))
    adapter: Adapter = _registry.load(_SPLITS[plan.options["split"]])(plan)
    return adapter


def shards_nothing(plan: Plan) -> bool:
    """Tell whether there is one rank, which shards nothing, and an option to honour."""
    return plan.cluster.alone and Knobs.of(plan.options).asked
