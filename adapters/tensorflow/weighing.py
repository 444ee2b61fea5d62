"""Means over things that the parts hold unequal numbers of: tokens, unmasked pixels."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from dream._errors import Unsupported
from dream.adapters.keras.optimizer import announce
from dream.adapters.tensorflow.training import Total
from dream.collectives.tensors import as_written


@as_written
def weigh(loss: Any, count: Any, parts: int, total: Total | None, *, ranks: bool) -> Any:
    """`loss`, a mean over `count` things on this part, such that the mean over the parts is the
    mean over all things; exactly 0 where the count is 0. The optimizer that is applied next
    reduces its gradients as they are."""
    if total is None:
        return loss
    if not ranks:
        _check_place(parts)
    mine = tf.cast(tf.reshape(count, []), loss.dtype)
    (everyone,) = total([mine])
    announce()
    return tf.math.multiply_no_nan(loss, tf.math.divide_no_nan(mine * parts, everyone))


def _check_place(parts: int) -> None:
    """Replicas of one process compute inside TensorFlow's own strategy.run."""
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync != parts:
        raise Unsupported(
            "A loop of your own runs on one of this process's devices. Received: weigh, replicas="
            f"{parts} in one process. Use strategy.train_step(model, loss, optimizer, weight=...), "
            "or one process per device: dream run -n."
        )
