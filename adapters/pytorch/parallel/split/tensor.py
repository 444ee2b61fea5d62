"""`model_parallel` and `hybrid` with split="tensor": layers cut over the model axis."""

from __future__ import annotations

from typing import final

from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dream._adapter import Plan
from dream.adapters.pytorch.parallel.split import place
from dream.adapters.pytorch.parallel.split.in_place import InPlace
from dream.adapters.pytorch.parallel.split.place import Place
from dream.adapters.pytorch.parallel.split.room import Room
from dream.adapters.pytorch.parallel.split.root import Forward
from dream.adapters.pytorch.parallel.split.tensor_root import TensorRoot


@final
class Tensor(InPlace):
    """Ranks along the model axis work on the same samples, each with its piece of the layers."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._data_group: ProcessGroup | None = None
        self._device_mesh = None if self._alone else self._make_mesh()

    def _connect(self, plan: Plan) -> Place:
        return place.connect(plan, place.mesh_of(plan))

    def _make_mesh(self) -> DeviceMesh:
        mesh = self._place.mesh
        axes = ("data", "model")
        whole = init_device_mesh(self._device.type, (mesh.data, mesh.model), mesh_dim_names=axes)
        self._data_group = whole["data"].get_group() if mesh.data > 1 else None
        return whole["model"]

    def _group(self) -> ProcessGroup | None:
        return self._data_group

    def _make_root(self, module: nn.Module, room: Room, inner: Forward | None) -> TensorRoot:
        assert self._device_mesh is not None
        return TensorRoot(
            module,
            room,
            inner,
            mesh=self._device_mesh,
            device=self._device,
            asked=self._plan.options["plan"],
            among=self._place.model,
        )
