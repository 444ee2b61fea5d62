"""A world of ranks in one process, for tensors without values: nothing is sent, all is noted."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining._utils import InferenceMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from dream._topology import Cluster, Mesh
from dream.adapters.pytorch.collectives import GroupWire
from dream.adapters.pytorch.hooks import Patches
from dream.adapters.pytorch.parallel.sharding import graph
from dream.adapters.pytorch.parallel.sharding.mesh_placement import MeshPlacement, own_group
from dream.adapters.pytorch.tensors import TorchTensors
from dream.adapters.pytorch.update import batch_norm
from dream.collectives import Communicator, Members


@final
@dataclass(frozen=True, slots=True)
class World:
    """A make-believe world of ranks, as one of them sees it.

    devices: the mesh with its axes "data" and "model".
    """

    place: MeshPlacement
    devices: DeviceMesh


@contextmanager
def world(mesh: Mesh, rank: int) -> Iterator[World]:
    """As `rank` sees it. Opened before tensors lose their values: a mesh reads its own."""
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=mesh.size)
    try:
        yield World(_place_in(mesh, rank), _devices(mesh))
    finally:
        distributed.destroy_process_group()


def _place_in(mesh: Mesh, rank: int) -> MeshPlacement:
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


_SEVERAL = 1e6
"""Values of a BatchNorm's channel: more than there are ranks, which may all have the same batch.
Nothing in a step's size or time depends on them."""


@contextmanager
def rehearsal_stubs() -> Iterator[None]:
    """Ranks are alike, a BatchNorm has values to normalise by, and no random number is drawn in a
    forward pass. What is warned of is said again when somebody trains."""
    with Patches() as patches, warnings.catch_warnings():
        patches.replace(batch_norm, "number", lambda _: _SEVERAL)
        patches.replace(graph, "generator_states", lambda: None)
        patches.replace(schedules._PipelineSchedule, "_warmup_p2p", _settled)
        warnings.simplefilter("ignore")
        yield


def _settled(_: object, stages: Sequence[Any], *__: object) -> None:
    """What the stages of ordinary tensors vote for."""
    for stage in stages:
        stage._inference_mode = InferenceMode.STATIC
