"""Where this rank stands in the mesh, and whom it talks to along each axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dream._adapter import Plan
from dream._topology import Mesh
from dream.adapters.pytorch import collectives
from dream.adapters.pytorch.tensors import TorchTensors
from dream.collectives import Communicator, Loop, Members
from dream.strategies import registry


@dataclass(frozen=True, slots=True)
class MeshPlacement:
    """A rank in a mesh.

    world: all ranks; data: those that hold the same part of the model, each with its own share of
    a batch; model: those that hold the parts of one copy, and work on the same share.
    """

    mesh: Mesh
    rank: int
    world: Communicator
    data: Communicator
    model: Communicator

    @property
    def model_index(self) -> int:
        return self.mesh.model_index(self.rank)


def mesh_of(plan: Plan) -> Mesh:
    """Return the mesh that the options ask for. Where they name no axis, a model is split over all
    ranks, and `hybrid` makes copies of two parts each."""
    data: Any = plan.options["data"]
    model: Any = plan.options["model"]
    ranks = plan.cluster.world_size
    if plan.spec.name == "hybrid" and data is None and model is None:
        model = min(2, ranks)
    return Mesh.fit(ranks, data=data, model=model, spare="model")


def shards_mesh_of(plan: Plan) -> Mesh:
    """Return the mesh of `sharded`: one model in shards over all ranks, or `data` times over."""
    data: Any = plan.options["data"]
    return Mesh.fit(plan.cluster.world_size, data=data or 1, model=None, spare="model")


def connect(plan: Plan, mesh: Mesh) -> MeshPlacement:
    """Return the rank's place in a mesh of ranks, over torch's process groups."""
    world = _world(plan)
    data = own_group(world, [mesh.twins_of(index) for index in range(mesh.model)])
    copies = [mesh.copy_of(index * mesh.model) for index in range(mesh.data)]
    return MeshPlacement(mesh, plan.cluster.rank, world, data, own_group(world, copies))


def _world(plan: Plan) -> Communicator:
    members, tensors = Members.all_of(plan.cluster), TorchTensors()
    if plan.cluster.alone:
        return Communicator(Loop(), tensors, members)
    collectives.start_group(plan.cluster, plan.reduction)  # NCCL for GPUs, if nothing is said
    reduction = "gloo" if plan.reduction == "auto" else plan.reduction
    wire = registry.reduction("torch", reduction)(plan.cluster, reduction)
    return Communicator(wire, tensors, members)


def own_group(world: Communicator, groups: list[tuple[int, ...]]) -> Communicator:
    """Return the group this rank is in. Every rank helps to make all of them."""
    if len(groups) == 1:
        return world
    mine = [made for ranks in groups if (made := world.group(ranks)) is not None]
    return mine[0]
