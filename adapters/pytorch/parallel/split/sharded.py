"""`sharded`: parameters, gradients and optimizer state in shards, one a rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, final

import torch
from torch import distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dream._adapter import Plan
from dream._mesh import Mesh
from dream.adapters.pytorch.parallel.split import place
from dream.adapters.pytorch.parallel.split.in_place import InPlace
from dream.adapters.pytorch.parallel.split.place import Place
from dream.adapters.pytorch.parallel.split.room import Room
from dream.adapters.pytorch.parallel.split.root import Forward
from dream.adapters.pytorch.parallel.split.sharded_root import ShardedRoot
from dream.collectives import Communicator


@final
class Sharded(InPlace):
    """FSDP2. Shards lie along the mesh's model axis; every rank has its own share of a batch."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._device_mesh = None if self._alone else self._make_mesh()

    def _connect(self, plan: Plan) -> Place:
        data: Any = plan.options["data"]
        mesh = Mesh.fit(plan.cluster.world_size, data=data or 1, model=None, spare="model")
        return place.connect(plan, mesh)

    @property
    def _dealt(self) -> Communicator:
        return self._place.world

    def enter(self) -> None:
        super().enter()
        if not self._alone:
            self._patches.replace(torch.autograd, "grad", self._wrap_grad(torch.autograd.grad))

    def _wrap_grad(self, grad: Callable[..., Any]) -> Callable[..., Any]:
        """`torch.autograd.grad` whose result may be differentiated: that takes the parameters."""

        @wraps(grad)
        def wrapped(*args: Any, create_graph: bool = False, **kwargs: Any) -> Any:
            roots = [root for root in self._room.roots if isinstance(root, ShardedRoot)]
            for root in roots:
                root.keep_gathered(create_graph)
            try:
                return grad(*args, create_graph=create_graph, **kwargs)
            finally:
                for root in roots:
                    root.keep_gathered(False)

        return wrapped

    def _make_mesh(self) -> DeviceMesh:
        mesh = self._place.mesh
        if mesh.data == 1:
            return init_device_mesh(self._device.type, (mesh.model,), mesh_dim_names=("shard",))
        return init_device_mesh(
            self._device.type, (mesh.data, mesh.model), mesh_dim_names=("replica", "shard")
        )

    def _group(self) -> ProcessGroup | None:
        return None if self._alone else distributed.group.WORLD

    def _make_root(self, module: nn.Module, room: Room, inner: Forward | None) -> ShardedRoot:
        assert self._device_mesh is not None
        reshard = self._plan.options["zero"] == 3
        mesh, device = self._device_mesh, self._device
        return ShardedRoot(module, room, inner, mesh=mesh, device=device, reshard=reshard)
