"""Variables that are cut over several servers.

TensorFlow cuts them, and Keras 3 does not know what it gets: gradients are taken of the shards and
applied to them, and what reads a variable as one array is given one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.tensorflow import private

_ELEMENT_BY_ELEMENT = (
    "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam", "RMSprop", "SGD",
)  # fmt: skip
"""Keras's optimizers that step each element by itself, so that a shard steps as it would in the
whole."""

_LEAST_DIMS = 2
"""Biases, running statistics and states of generators stay whole."""


@final
class Partitioner:
    """In how many shards TensorFlow is to cut a variable. text: the `partitioner=` option."""

    def __init__(self, text: str, servers: int) -> None:
        kinds = tf.distribute.experimental.partitioners
        makers: dict[str, Callable[[int], Any]] = {
            "min_size": lambda size: kinds.MinSizePartitioner(size, max_shards=servers),
            "max_size": kinds.MaxSizePartitioner,
            "fixed": kinds.FixedShardsPartitioner,
        }
        kind, _, number = text.partition(":")
        if kind not in makers or not number.isdecimal() or int(number) < 1:
            raise ConfigurationError(
                f"This is not a valid partitioner. Received: partitioner={text!r}. Write "
                "'min_size:BYTES', 'max_size:BYTES' or 'fixed:SHARDS'."
            )
        self._cut = makers[kind](int(number))

    def __call__(self, shape: Any, dtype: Any, **others: Any) -> Sequence[int]:
        shape = tf.TensorShape(shape)
        if shape.rank < _LEAST_DIMS or not tf.as_dtype(dtype).is_floating:
            return [1] * shape.rank
        found: Sequence[int] = self._cut(shape, dtype, **others)
        return found


@contextmanager
def readable_shards() -> Iterator[None]:
    """Inside, a variable that is cut as it is made can be read as one array."""

    def create(make: Callable[..., Any], **given: Any) -> Any:
        made = make(**given)
        if private.cut_over_servers(made) is not None:
            made.__array__ = lambda dtype=None: np.asarray(tf.convert_to_tensor(made), dtype)
            made.numpy = made.__array__
        return made

    with tf.variable_creator_scope(create):
        yield


def trained(model: Any) -> list[Any]:
    """Return what is trained of a model: its variables, and the shards of those that are cut."""
    found: list[Any] = []
    for variable in model.trainable_variables:
        shards = _shards(variable)
        found.extend([variable] if shards is None else shards)
    return found


def check_shards(model: Any, optimizer: Any) -> None:
    """Refuse an optimizer and constraints that look at a whole variable, where one is cut."""
    cut = [v for v in model.trainable_variables if _shards(v) is not None]
    if not cut:
        return
    inner = vars(optimizer).get("inner_optimizer") or optimizer
    whole = type(inner).__name__ if type(inner).__name__ not in _ELEMENT_BY_ELEMENT else ""
    if any(each.clipnorm is not None for each in (inner, optimizer)):
        whole = "clipnorm, a norm of each variable"
    if any(v.constraint is not None for v in cut):
        whole = "a constraint on a weight"
    if whole:
        raise Unsupported(
            f"This looks at a whole variable, and {cut[0].path} is cut over the servers. Received: "
            f"{whole}. Remove partitioner, or use an optimizer that steps element by element: "
            f"{', '.join(_ELEMENT_BY_ELEMENT)}."
        )


def _shards(variable: Any) -> list[Any] | None:
    held = variable.value if isinstance(variable, keras.Variable) else variable
    return private.cut_over_servers(held)
