"""A world of ranks in one process, for tensors without values: nothing is sent, all is noted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from dream._mesh import Mesh
from dream._topology import Cluster
from dream.adapters.pytorch.collectives import GroupWire
from dream.adapters.pytorch.parallel.sharding.mesh_placement import MeshPlacement, own_group
from dream.adapters.pytorch.tensors import TorchTensors
from dream.collectives import Communicator, Members


@final
@dataclass(frozen=True, slots=True)
class World:
    """devices: the mesh with its axes "data" and "model"."""

    place: MeshPlacement
    devices: DeviceMesh


@contextmanager
def world(mesh: Mesh, rank: int) -> Iterator[World]:
    """As `rank` sees it. Opened before tensors lose their values: a mesh reads its own."""
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=mesh.size)
    try:
        yield World(_place(mesh, rank), _devices(mesh))
    finally:
        distributed.destroy_process_group()


def _place(mesh: Mesh, rank: int) -> MeshPlacement:
    cluster = Cluster(rank=rank, world_size=mesh.size, local_world_size=mesh.size, local_rank=rank)
    group = distributed.group.WORLD
    assert group is not None
    wire = GroupWire(group, "gloo")
    everybody = Communicator(wire, TorchTensors(), Members.all_of(cluster), check=False)
    data = own_group(everybody, [mesh.twins_of(index) for index in range(mesh.model)])
    model = own_group(everybody, [mesh.copy_of(index * mesh.model) for index in range(mesh.data)])
    return MeshPlacement(mesh, rank, everybody, data, model)


def _devices(mesh: Mesh) -> DeviceMesh:
    axes = ("data", "model")
    return init_device_mesh("cpu", (mesh.data, mesh.model), mesh_dim_names=axes)
