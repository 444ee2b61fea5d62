"""What `reduction="auto"` takes for TensorFlow across processes."""

from __future__ import annotations

import tensorflow as tf

from dream import _registry
from dream._topology import Cluster
from dream.collectives import Wire
from dream.shared_memory.groups import serves


def shared(place: Cluster) -> bool:
    """Whether it is shared memory: for CPU tensors on one host."""
    return not tf.config.list_physical_devices("GPU") and serves(place)


def connect(place: Cluster, reduction: str) -> Wire:
    """Shared memory, else TensorFlow's own collectives."""
    del reduction
    name = "shared_memory" if shared(place) else "grpc"
    wire: Wire = _registry.reduction("tensorflow", name)(place, name)
    return wire
