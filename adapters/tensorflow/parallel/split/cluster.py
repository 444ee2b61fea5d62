"""The cluster of all ranks as DTensor wants it, and the communicator that stands beside it."""

from __future__ import annotations

from dream._topology import Cluster
from dream.adapters.tensorflow import choosing, runtime
from dream.adapters.tensorflow.tensors import TensorFlowTensors
from dream.collectives import Communicator, Members


def join(place: Cluster) -> Communicator:
    """Bring up DTensor's cluster; the communicator of all its ranks."""
    runtime.join_mesh(place)
    wire = choosing.connect(place, "auto")
    return Communicator(wire, TensorFlowTensors(), Members.all_of(place))
