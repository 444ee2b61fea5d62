"""Shared memory as a wire of TensorFlow, eagerly and inside a tf.function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf

from dream._topology import Cluster
from dream.adapters.shared_memory._op import op_of
from dream.adapters.tensorflow import runtime
from dream.adapters.tensorflow.errors import translated
from dream.collectives import Wire
from dream.collectives.transport import Combine, Length
from dream.shared_memory import OPERATIONS, Group, groups


def connect(place: Cluster, reduction: str) -> Wire:
    """The wire of the job's ranks, which share a host."""
    del reduction
    runtime.waits_in_functions()
    return SharedMemory(place, groups.everybody(place), "all")


@final
class SharedMemory(Wire):
    """Some ranks of the job. name: the group's, of no other.

    Sums are an op of TensorFlow's; what only moves goes by NumPy, in a graph too. A variable that
    both use keeps them in order.
    """

    def __init__(self, place: Cluster, group: Group, name: str) -> None:
        self._place, self._group, self._name = place, group, name
        self._groups = 0
        self._op = op_of(group)
        self._order = _order_of(group)

    @property
    def name(self) -> str:
        return groups.NAME

    def all_reduce(self, buffers: list[tf.Tensor], op: Combine) -> list[tf.Tensor]:
        with translated(), tf.device("CPU:0"):
            return [self._reduced(buffer, op) for buffer in buffers]

    def broadcast(self, buffers: list[tf.Tensor], root: int) -> list[tf.Tensor]:
        def act(own: np.ndarray) -> np.ndarray:
            own = own.copy()
            self._group.broadcast(own.ctypes.data, own.size, own.dtype.name, root)
            return own

        return [self._by_numpy(act, buffer, buffer.shape) for buffer in buffers]

    def all_gather(self, buffer: tf.Tensor) -> tf.Tensor:
        size = self._group.size

        def act(own: np.ndarray) -> np.ndarray:
            whole = np.empty(size * own.size, own.dtype)
            counts = [own.size] * size
            self._group.all_gather(own.ctypes.data, whole.ctypes.data, counts, own.dtype.name)
            return whole

        length = buffer.shape[0]
        return self._by_numpy(act, buffer, [None if length is None else size * length])

    def all_to_all(
        self, buffer: tf.Tensor, sends: Sequence[Length], receives: Sequence[Length]
    ) -> tf.Tensor:
        size = self._group.size

        def act(own: np.ndarray, lengths: np.ndarray) -> np.ndarray:
            there, here = lengths[:size].tolist(), lengths[size:].tolist()
            came = np.empty(sum(here), own.dtype)
            self._group.all_to_all(own.ctypes.data, came.ctypes.data, there, here, own.dtype.name)
            return came

        lengths = tf.stack([tf.cast(length, tf.int64) for length in (*sends, *receives)])
        return self._by_numpy(act, buffer, [None], lengths)

    def group(self, ranks: Sequence[int]) -> Wire | None:
        self._groups += 1
        name = f"{self._name}.{self._groups}"
        group = groups.some(self._place, self._group.ranks, ranks, name)
        return None if group is None else SharedMemory(self._place, group, name)

    def close(self) -> None:
        """The group stays for later blocks; it ends with the process."""

    def _reduced(self, buffer: tf.Tensor, op: Combine) -> tf.Tensor:
        if self._op is not None:
            return self._op.all_reduce(buffer, self._order.handle, OPERATIONS[op])

        def act(own: np.ndarray) -> np.ndarray:
            result = np.empty_like(own)
            self._group.all_reduce(
                own.ctypes.data, result.ctypes.data, own.size, own.dtype.name, op
            )
            return result

        return self._by_numpy(act, buffer, buffer.shape)

    def _by_numpy(
        self, act: Callable[..., np.ndarray], buffer: tf.Tensor, shape: Any, *more: tf.Tensor
    ) -> tf.Tensor:
        if tf.executing_eagerly():
            return tf.convert_to_tensor(act(buffer.numpy(), *[x.numpy() for x in more]))
        with tf.device("CPU:0"):
            with tf.control_dependencies([self._turn()]):
                result = tf.numpy_function(act, [buffer, *more], buffer.dtype)
            with tf.control_dependencies([result]):
                self._turn()
        return tf.ensure_shape(result, shape)

    def _turn(self) -> tf.Operation:
        return self._order.assign_add(1, read_value=False)


_orders: WeakKeyDictionary[Group, tf.Variable] = WeakKeyDictionary()


def _order_of(group: Group) -> tf.Variable:
    """What every call on the group writes, by whichever wire: TensorFlow orders a graph's ops on
    one variable, and would run others as they come, not alike on all ranks."""
    if group not in _orders:
        with tf.init_scope(), tf.device("CPU:0"):
            _orders[group] = tf.Variable(0.0, trainable=False)
    return _orders[group]
