"""The raw calls of TensorFlow's transports, for the benchmark of collectives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import tensorflow as tf

Calls = dict[str, Callable[[], Any]]
_GROUPS = count(99_000)


def tensor(elements: int) -> tf.Tensor:
    return tf.zeros(elements)


def raw(transport: str, x: tf.Tensor) -> Calls:
    """Sums over all ranks, eagerly, as a user of the transport writes them."""
    if transport == "horovod":
        import horovod.tensorflow as hvd

        hvd.init()
        return {"": lambda: hvd.allreduce(x, op=hvd.Sum)}
    return {"": _collective(x, 2)}


def raw_alone(x: tf.Tensor) -> Calls:
    """The same in a group that has rank 0 alone, which waits for nobody. Every rank calls it."""
    return {"": _collective(x, 1)}


def dream(ranks: Any, x: tf.Tensor) -> Calls:
    return {"": lambda: ranks.all_reduce(x, "sum")}


def _collective(x: tf.Tensor, ranks: int) -> Callable[[], tf.Tensor]:
    """TensorFlow's own op, which wants another number for each call."""
    numbers = count(1)
    run = partial(
        tf.raw_ops.CollectiveReduceV2,
        input=x,
        group_size=ranks,
        group_key=next(_GROUPS),
        merge_op="Add",
        final_op="Id",
        communication_hint="ring",
        ordering_token=[],
    )
    return lambda: run(instance_key=next(numbers))
