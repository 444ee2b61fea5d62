"""`sharded` with zero=1: replicas in step, of which each keeps a shard of the optimizer's state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import Optimizer

from dream._adapter import Adapter, Metric, Plan, Step
from dream._mesh import Mesh
from dream._options import REPLICAS
from dream._topology import Topology
from dream.adapters.pytorch.keras.entry import forbid_fits, refuse_keras
from dream.adapters.pytorch.parallel.ddp.synchronous import Synchronous
from dream.adapters.pytorch.parallel.split.place import one_of
from dream.adapters.pytorch.parallel.split.rows import Rows
from dream.adapters.pytorch.parallel.split.saving import refusing_parts
from dream.adapters.pytorch.parallel.split.sharded_steps import ShardedSteps
from dream.adapters.pytorch.patches import Patches
from dream.collectives import Communicator


@final
class ShardedState(Adapter):
    """DDP on all ranks; the ranks of a row of the mesh hold one state together."""

    def __init__(self, plan: Plan) -> None:
        options = {option.name: option.default for option in REPLICAS}
        options |= {name: value for name, value in plan.options.items() if name in options}
        self._replicas = Synchronous(replace(plan, options=options))
        self._name = plan.spec.name
        data: Any = plan.options["data"]
        mesh = Mesh.fit(plan.cluster.world_size, data=data or 1, model=None, spare="model")
        rows = [mesh.copy_of(index * mesh.model) for index in range(mesh.data)]
        device = torch.device(self.topology.device).type
        axes = ("replica", "shard")
        made = (
            None
            if mesh.size == 1
            else init_device_mesh(device, (mesh.data, mesh.model), mesh_dim_names=axes)
        )
        self._steps = ShardedSteps(Rows(one_of(self.communicator, rows)), made)
        self._patches = Patches()

    @property
    def topology(self) -> Topology:
        return self._replicas.topology

    @property
    def communicator(self) -> Communicator:
        return self._replicas.communicator

    def enter(self) -> None:
        self._replicas.enter()
        change = self._patches.replace
        change(torch, "save", refusing_parts(torch.save))
        forbid_fits(self._patches, self._name)
        change(Optimizer, "__init__", self._steps.wrap_init(Optimizer.__init__))
        change(nn.Module, "__init__", self._wrap_init(nn.Module.__init__))

    def exit(self) -> None:
        self._patches.restore()
        self._replicas.exit()

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        for item in objects:
            refuse_keras(item, self._name)
        ready = self._replicas.prepare(*objects)
        for item in ready:
            if isinstance(item, Optimizer):
                self._steps.take(item)
        return ready

    def train_step(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        optimizer: Optimizer,
        weight: Callable[..., Any] | None,
    ) -> Step:
        self._steps.take(optimizer)
        return self._replicas.train_step(model, loss, optimizer, weight)

    def evaluate(
        self, model: nn.Module, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        return self._replicas.evaluate(model, data, metrics)

    def weigh(self, loss: Any, count: Any) -> Any:
        return self._replicas.weigh(loss, count)

    def full_state(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        return self._replicas.full_state(model)

    def _wrap_init(self, init: Callable[..., None]) -> Callable[..., None]:
        @wraps(init)
        def wrapped(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            refuse_keras(module, self._name)
            init(module, *args, **kwargs)

        return wrapped
