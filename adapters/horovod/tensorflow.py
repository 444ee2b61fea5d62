"""The ring as a reduction of TensorFlow, eagerly and inside a tf.function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

import tensorflow as tf
from horovod.tensorflow import mpi_ops

from dream._adapter import Communicator, Plan
from dream._alone import Alone
from dream.adapters.horovod._ring import explained, stand_in
from dream.adapters.tensorflow import wire
from dream.adapters.tensorflow.communicator import Combine, TensorCommunicator, Transport

_OPS: dict[Combine, int] = {"sum": mpi_ops.Sum, "min": mpi_ops.Min, "max": mpi_ops.Max}


def connect(plan: Plan) -> Communicator:
    """The communicator of the plan's ranks over the ring."""
    if plan.cluster.alone:
        return Alone(wire.take)
    stand_in(mpi_ops, plan.cluster, "tensorflow")
    return TensorCommunicator(Ring(), plan.cluster.rank, plan.cluster.world_size)


@final
class Ring(Transport):
    """The ranks of the job, in Horovod's ring.

    The core matches tensors by name. A graph makes the names of its nodes differ, in the order
    in which they are traced, which is the same on every rank.
    """

    def reduce(self, buffers: list[tf.Tensor], op: Combine) -> list[tf.Tensor]:
        def send(buffer: tf.Tensor) -> tf.Tensor:
            name = f"dream_{op}_{buffer.dtype.name}"
            return mpi_ops._allreduce(buffer, name=name, op=_OPS[op], ignore_name_scope=True)

        return _each(buffers, send)

    def broadcast(self, buffers: list[tf.Tensor], root: int) -> list[tf.Tensor]:
        def send(buffer: tf.Tensor) -> tf.Tensor:
            name = f"dream_from{root}_{buffer.dtype.name}"
            return mpi_ops.broadcast(buffer, root, name=name, ignore_name_scope=True)

        return _each(buffers, send)

    def close(self) -> None:
        """The ring stays up for what comes later in the process; it ends with it."""


def _each(buffers: list[tf.Tensor], send: Callable[[tf.Tensor], tf.Tensor]) -> list[tf.Tensor]:
    """`send` for every buffer, on the CPU: the core is built without NCCL."""
    with _translated(), tf.device("CPU:0"):
        return [buffer if buffer.shape == (0,) else send(buffer) for buffer in buffers]


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except tf.errors.OpError as error:
        raise explained(error) from error
