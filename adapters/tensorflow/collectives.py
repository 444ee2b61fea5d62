"""TensorFlow's own collectives (gRPC between CPUs, NCCL between GPUs) as a transport.

Every collective takes its number from a counter that each rank keeps in a variable, so that it
is right under retracing, in loops and with several functions, and so that ranks which call
different things are told so by TensorFlow: a collective's number, dtype and shape are compared.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from dream._adapter import Communicator, Plan
from dream._alone import Alone
from dream._topology import Cluster
from dream.adapters.tensorflow import runtime, wire
from dream.adapters.tensorflow.communicator import Combine, TensorCommunicator, Transport
from dream.adapters.tensorflow.errors import translated

TIMEOUT_SECONDS = 1800.0
"""How long a collective waits for the slowest rank."""
_GROUP = 7001
_FIRST_NUMBER = 1
_MERGE: dict[Combine, tuple[str, int]] = {"sum": ("Add", 1), "min": ("Min", 2), "max": ("Max", 3)}
"""TensorFlow's name, and how many dims the buffer is given: TensorFlow compares shapes between
ranks, not operations."""


def connect(plan: Plan) -> Communicator:
    """The communicator of the plan's ranks over TensorFlow's collectives."""
    if plan.cluster.alone:
        return Alone(wire.take)
    hint = "nccl" if plan.reduction == "nccl" else "ring"
    runtime.join(plan.cluster, nccl=hint == "nccl")
    cluster = plan.cluster
    return TensorCommunicator(_transport(cluster, hint), cluster.rank, cluster.world_size)


_made: dict[str, Collectives] = {}


def _transport(cluster: Cluster, hint: str) -> Collectives:
    """One for each kind and process: its counter must go on from block to block."""
    if hint not in _made:
        _made[hint] = Collectives(cluster, hint, _GROUP + len(_made))
    return _made[hint]


class Collectives(Transport):
    """The ranks of one cluster that TensorFlow's runtime has joined."""

    def __init__(self, cluster: Cluster, hint: str, group: int) -> None:
        self._rank = cluster.rank
        self._common: dict[str, Any] = {
            "group_size": cluster.world_size,
            "group_key": group,
            "communication_hint": hint,
            "timeout_seconds": TIMEOUT_SECONDS,
        }
        with tf.init_scope():
            with tf.device("CPU:0"):
                self._number = tf.Variable(_FIRST_NUMBER, dtype=tf.int32, trainable=False)
            self._order = tf.Variable(0.0, trainable=False)

    def reduce(self, buffers: list[tf.Tensor], op: Combine) -> list[tf.Tensor]:
        with translated():
            return [self._reduce(buffer, op) for buffer in buffers]

    def broadcast(self, buffers: list[tf.Tensor], root: int) -> list[tf.Tensor]:
        with translated():
            return [self._broadcast(buffer, root) for buffer in buffers]

    def close(self) -> None:
        """TensorFlow keeps its cluster as long as the process lives."""

    def _reduce(self, buffer: tf.Tensor, op: Combine) -> tf.Tensor:
        merge, dims = _MERGE[op]
        result = tf.raw_ops.CollectiveReduceV2(
            input=tf.reshape(buffer, [-1] + [1] * (dims - 1)) if dims > 1 else buffer,
            instance_key=self._number.assign_add(1),
            ordering_token=[self._order.handle],
            merge_op=merge,
            final_op="Id",
            **self._common,
        )
        return tf.reshape(result, tf.shape(buffer)) if dims > 1 else result

    def _broadcast(self, buffer: tf.Tensor, root: int) -> tf.Tensor:
        """Rank `root` adds to zeros: exact, and checked like any reduction."""
        mine = buffer if self._rank == root else tf.zeros_like(buffer)
        return self._reduce(mine, "sum")
