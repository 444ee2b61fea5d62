"""How losses and metrics are called, a batch's samples counted, and a rank's loss weighed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from dream._errors import Unsupported
from dream.adapters.keras.forward import score
from dream.adapters.keras.optimizer import announce
from dream.collectives.tensors import as_written

Batch = tuple[Any, ...]
Total = Callable[[list[tf.Tensor]], Sequence[tf.Tensor]]
"""The sum of each tensor over the parts."""


def value_of(function: Callable[..., Any], prediction: Any, target: Any) -> tf.Tensor:
    """Return the value of a loss or a metric on a batch, as a tensor."""
    return tf.convert_to_tensor(score(function, prediction, target))


def count_of(batch: Batch) -> tf.Tensor:
    """How many samples a batch has: the length of its first tensor, as float32."""
    first = tf.nest.flatten(batch)[0]
    return tf.cast(tf.shape(first)[0], tf.float32)


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
