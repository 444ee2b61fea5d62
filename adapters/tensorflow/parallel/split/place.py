"""The devices of a mesh, in one process or several, and who talks to whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dream._adapter import Plan
from dream._mesh import Mesh
from dream._topology import Topology
from dream.adapters.tensorflow import runtime
from dream.adapters.tensorflow.parallel.split import cluster, dtensor
from dream.adapters.tensorflow.parallel.split.layouts import DATA, MODEL
from dream.adapters.tensorflow.tensors import TensorFlowTensors
from dream.collectives import Communicator, Loop, Members


@dataclass(frozen=True, slots=True)
class Place:
    """A process's devices in the mesh of all. axes: the mesh in numbers; mesh: DTensor's own."""

    topology: Topology
    communicator: Communicator
    axes: Mesh
    mesh: Any


def connect(plan: Plan, *, data: int | None, model: int | None, spare: str) -> Place:
    """Set up what must be there before TensorFlow's first op."""
    each = plan.devices or 1
    axes = Mesh.fit(each * plan.cluster.world_size, data=data, model=model, spare=spare)
    sizes = {DATA: axes.data, MODEL: axes.model}
    if plan.cluster.alone:
        devices = runtime.replicas(plan.devices)
        axes = Mesh.fit(len(devices), data=data, model=model, spare=spare)
        mesh = dtensor.local_mesh({DATA: axes.data, MODEL: axes.model}, devices)
        communicator = Communicator(Loop(), TensorFlowTensors(), Members.all_of(plan.cluster))
    else:
        devices = runtime.logical_cpus(each)
        communicator = cluster.join(plan.cluster)
        mesh = dtensor.distributed_mesh(sizes, devices)
    topology = Topology.of(plan.cluster, num_replicas=axes.size, device=devices[0])
    return Place(topology, communicator, axes, mesh)
