"""The communicator for TensorFlow and NumPy tensors, over whatever carries flat buffers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from dream import _objects
from dream._adapter import Communicator, Op, Tensor
from dream.adapters.tensorflow import wire
from dream.adapters.tensorflow.tracing import as_written

Combine = Literal["sum", "min", "max"]


class Transport(ABC):
    """What carries buffers between the ranks, eagerly and inside a tf.function.

    A buffer has shape (n,) and is float32, float64, int32 or int64; it is alike on every rank.
    """

    @abstractmethod
    def reduce(self, buffers: list[tf.Tensor], op: Combine) -> list[tf.Tensor]: ...

    @abstractmethod
    def broadcast(self, buffers: list[tf.Tensor], root: int) -> list[tf.Tensor]: ...

    @abstractmethod
    def close(self) -> None: ...


class TensorCommunicator(Communicator):
    """Packs what it is given into one buffer for each dtype, and hands these to a transport."""

    def __init__(self, transport: Transport, rank: int, world_size: int) -> None:
        self._transport = transport
        self._rank = rank
        self._world_size = world_size

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return self._world_size

    @as_written
    def all_reduce(self, x: Tensor | Sequence[Tensor], op: Op = "mean") -> Any:
        wire.check_op(op)
        if not isinstance(x, (list, tuple)):
            return self.all_reduce([x], op)[0]
        pack = wire.Pack.of([wire.tensor(item, op) for item in x])
        buffers = self._transport.reduce(pack.buffers, "sum" if op == "mean" else op)
        if op == "mean":
            buffers = [buffer / self._world_size for buffer in buffers]
        return [wire.like(r, item) for r, item in zip(pack.unpack(buffers), x, strict=True)]

    @as_written
    def broadcast(self, x: Tensor | Sequence[Tensor], root: int = 0) -> Any:
        wire.check_root(root, self._world_size)
        if not isinstance(x, (list, tuple)):
            return self.broadcast([x], root)[0]
        pack = wire.Pack.of([wire.tensor(item, "max") for item in x])
        buffers = self._transport.broadcast(pack.buffers, root)
        return [wire.like(r, item) for r, item in zip(pack.unpack(buffers), x, strict=True)]

    def barrier(self) -> None:
        self.all_reduce(np.zeros(1, np.int32), "max")

    def all_gather_object(self, value: object) -> list[Any]:
        return _objects.all_gather(self, value)

    def broadcast_object(self, value: object, root: int = 0) -> Any:
        wire.check_root(root, self._world_size)
        return _objects.broadcast(self, value, root)

    def close(self) -> None:
        self._transport.close()
