"""TensorFlow's own collectives (gRPC between CPUs, NCCL between GPUs) as a wire.

Every collective takes its number from a counter that each rank keeps in a variable, so that it
is right under retracing, in loops and with several functions, and so that ranks which call
different things are told so by TensorFlow: a collective's number, dtype and shape are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import tensorflow as tf

from dream._topology import Cluster
from dream.adapters.tensorflow import runtime
from dream.adapters.tensorflow.cluster import join
from dream.adapters.tensorflow.errors import translated
from dream.adapters.tensorflow.tensors import TensorFlowTensors
from dream.collectives import Communicator, Loop, Members, Wire
from dream.collectives.transport import Combine, Length
from dream.strategies import registry

_GROUP = 7001
_FIRST_NUMBER, _LAST = 1, 2**31 - 1
_MERGE: dict[Combine, tuple[str, int]] = {
    "sum": ("Add", 1), "min": ("Min", 2), "max": ("Max", 3), "product": ("Mul", 4)
}  # fmt: skip
"""TensorFlow's name, and how many dims the buffer is given: TensorFlow compares shapes between
ranks, not operations."""


def connect_auto(place: Cluster, reduction: str) -> Wire:
    """Shared memory, else TensorFlow's own collectives."""
    del reduction
    name = "shared_memory" if runtime.shares_memory(place) else "grpc"
    wire: Wire = registry.reduction("tensorflow", name)(place, name)
    return wire


def alone(place: Cluster) -> Communicator:
    """Of a process without others."""
    return Communicator(Loop(), TensorFlowTensors(), Members.all_of(place))


def everyone(place: Cluster, reduction: str) -> Communicator:
    """Of all ranks."""
    wire = registry.reduction("tensorflow", reduction)(place, reduction)
    return Communicator(wire, TensorFlowTensors(), Members.all_of(place))


def connect(place: Cluster, reduction: str) -> Wire:
    """The wire of the job's ranks over TensorFlow's collectives."""
    hint = "nccl" if reduction == "nccl" else "ring"
    runtime.waits_in_functions()
    join(place, nccl=hint == "nccl")
    return _wire(place, hint)


_made: dict[tuple[str, tuple[int, ...]], Collectives] = {}


def _wire(place: Cluster, hint: str) -> Collectives:
    """One for each kind and process: its counter must go on from block to block."""
    everybody = tuple(range(place.world_size))
    if (hint, everybody) not in _made:
        key = _GROUP + len(_made)
        _made[hint, everybody] = Collectives(place.rank, everybody, hint, (key,))
    return _made[hint, everybody]


@final
class Collectives(Wire):
    """Some ranks of the cluster that TensorFlow's runtime has joined.

    ranks: as the cluster numbers them. path: the numbers of the groups that led here.
    """

    def __init__(self, rank: int, ranks: Sequence[int], hint: str, path: tuple[int, ...]) -> None:
        self._ranks = tuple(ranks)
        self._everywhere = rank
        self._place = self._ranks.index(rank)
        self._hint, self._path = hint, path
        self._groups = 0
        self._common: dict[str, Any] = {
            "group_size": len(ranks),
            "group_key": _key(path),
            "communication_hint": hint,  # no timeout: each would keep two threads asleep so long
        }
        with tf.init_scope():
            with tf.device("CPU:0"):
                self._number = tf.Variable(_FIRST_NUMBER, dtype=tf.int32, trainable=False)
                # made once: eagerly each call would make them tensors, which takes as long as an op
                numbers = {n: tf.constant(self._common[n]) for n in ("group_size", "group_key")}
            self._eagerly = self._common | numbers
            self._order = tf.Variable(0.0, trainable=False)

    @property
    def name(self) -> str:
        return "nccl" if self._hint == "nccl" else "grpc"

    def all_reduce(self, buffers: list[tf.Tensor], op: Combine) -> list[tf.Tensor]:
        with translated():
            return [self._reduce(buffer, op) for buffer in buffers]

    def broadcast(self, buffers: list[tf.Tensor], root: int) -> list[tf.Tensor]:
        """Root adds to zeros: exact, and checked like any reduction."""
        mine = self._place == root
        with translated():
            return [
                self._reduce(buffer if mine else tf.zeros_like(buffer), "sum") for buffer in buffers
            ]

    def all_gather(self, buffer: tf.Tensor) -> tf.Tensor:
        if buffer.shape == (0,):
            return buffer
        with translated():
            return self._run(tf.raw_ops.CollectiveGatherV2, buffer)

    def all_to_all(
        self, buffer: tf.Tensor, sends: Sequence[Length], receives: Sequence[Length]
    ) -> tf.Tensor:
        """TensorFlow's own takes equal shares: they are filled up to the longest of any rank."""
        sizes = tf.cast(tf.stack(list(sends)), tf.int64)
        (most,) = self.all_reduce([tf.maximum(tf.reduce_max(sizes)[None], 1)], "max")
        rows = tf.RaggedTensor.from_row_lengths(buffer, sizes, validate=False)
        shares = rows.to_tensor(shape=[len(self._ranks), None])
        shares = tf.pad(shares, [[0, 0], [0, most[0] - tf.shape(shares, out_type=tf.int64)[1]]])
        with translated():
            came = self._run(tf.raw_ops.CollectiveAllToAllV2, shares)
        lengths = tf.cast(tf.stack(list(receives)), tf.int64)
        return tf.RaggedTensor.from_tensor(came, lengths=lengths).flat_values

    def group(self, ranks: Sequence[int]) -> Wire | None:
        self._groups += 1
        chosen = [self._ranks[rank] for rank in ranks]
        if self._everywhere not in chosen:
            return None
        return Collectives(self._everywhere, chosen, self._hint, (*self._path, self._groups))

    def close(self) -> None:
        """TensorFlow keeps its cluster as long as the process lives."""

    def _reduce(self, buffer: tf.Tensor, op: Combine) -> tf.Tensor:
        """TensorFlow's own crashes on a buffer without elements."""
        if buffer.shape == (0,):
            return buffer
        if buffer.shape[0] is None:
            return self._reduce_some(tf.pad(buffer, [[0, 1]]), op)[:-1]
        return self._reduce_some(buffer, op)

    def _reduce_some(self, buffer: tf.Tensor, op: Combine) -> tf.Tensor:
        merge, dims = _MERGE[op]
        shaped = tf.reshape(buffer, [-1] + [1] * (dims - 1)) if dims > 1 else buffer
        run = tf.raw_ops.CollectiveReduceV2
        result = self._run(run, shaped, merge_op=merge, final_op="Id")
        return tf.reshape(result, tf.shape(buffer)) if dims > 1 else result

    def _run(self, op: Callable[..., tf.Tensor], buffer: tf.Tensor, **details: Any) -> tf.Tensor:
        return op(
            input=buffer,
            instance_key=self._next(),
            ordering_token=[self._order.handle],
            **details,
            **(self._eagerly if tf.executing_eagerly() else self._common),
        )

    def _next(self) -> tf.Tensor:
        """The next collective's number: one op, for each costs as much as all of Python's part."""
        return tf.raw_ops.ResourceCountUpTo(resource=self._number.handle, limit=_LAST, T=tf.int32)


def _key(path: tuple[int, ...]) -> int:
    """A group's number, the same on all its ranks: groups of one parent differ in the last."""
    key = 0
    for number in path:
        key = (key * 1009 + number) % (2**31 - 1)
    return key
