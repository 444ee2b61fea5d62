"""How tensors travel: the few dtypes that every transport adds up, many tensors in a buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from dream._adapter import Op
from dream._errors import ConfigurationError, Unsupported, unknown

OPS = ("sum", "mean", "min", "max")
CARRIED = {
    tf.float16: tf.float32,
    tf.bfloat16: tf.float32,
    tf.float32: tf.float32,
    tf.float64: tf.float64,
    tf.bool: tf.int32,
    tf.int8: tf.int32,
    tf.uint8: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.int32: tf.int32,
    tf.uint32: tf.int64,
    tf.int64: tf.int64,
}
"""A tensor's dtype -> the one it travels in. Half precision is added up in float32."""


def check_op(op: str) -> None:
    if op not in OPS:
        raise unknown("op of all_reduce", op, OPS)


def tensor(x: Any, op: Op) -> tf.Tensor:
    """`x` as a tensor that `op` can be done on. x: tf.Tensor, tf.Variable, tf.IndexedSlices, a
    Keras variable, NumPy array or number of NumPy's."""
    if not _known(x):
        raise Unsupported(
            "A TensorFlow communicator takes TensorFlow tensors, variables and NumPy arrays. "
            f"Received: {type(x).__name__}. Convert it first."
        )
    value = tf.convert_to_tensor(x)
    check_dtype(value.dtype, op)
    return value


def check_dtype(dtype: tf.DType, op: Op) -> None:
    if dtype not in CARRIED:
        raise Unsupported(
            f"This dtype does not travel between ranks. Received: {dtype.name}. Cast it to one "
            f"of: {', '.join(sorted(known.name for known in CARRIED))}."
        )
    if (op == "mean" and not dtype.is_floating) or (op == "sum" and dtype.is_bool):
        raise Unsupported(
            f"There is no {op} of this dtype. Received: op={op!r}, {dtype.name}. Cast it to a "
            "float first."
        )


def like(result: tf.Tensor, x: Any) -> Any:
    """`result` in the kind of `x`: NumPy for NumPy, else a tensor."""
    return result.numpy() if isinstance(x, (np.ndarray, np.generic)) else result


def take(x: Any, op: Op) -> Any:
    """What one rank alone makes of `x`: the same checks, and a copy."""
    check_op(op)
    return like(tf.identity(tensor(x, op)), x)


def check_root(root: int, world_size: int) -> None:
    if not 0 <= root < world_size:
        raise ConfigurationError(
            f"No such rank to broadcast from. Received: root={root}, world size {world_size}. "
            f"Use 0 to {world_size - 1}."
        )


_SMALL = 1 << 16
"""Elements below which a tensor shares a buffer; a larger one is not worth copying."""


@dataclass(frozen=True, slots=True)
class Pack:
    """Tensors as they travel: large ones by themselves, the small ones of a dtype end to end.

    buffers: shape (n,) each. `unpack` takes buffers alike and gives tensors alike the originals.
    Large tensors go last to first, in the order in which backward has gradients ready.
    """

    buffers: list[tf.Tensor]
    places: list[list[int]]
    originals: list[tf.Tensor]

    @classmethod
    def of(cls, tensors: Sequence[tf.Tensor]) -> Pack:
        large = [[i] for i in reversed(range(len(tensors))) if not _is_small(tensors[i])]
        small: dict[tf.DType, list[int]] = {}
        for index, item in enumerate(tensors):
            if _is_small(item):
                small.setdefault(CARRIED[item.dtype], []).append(index)
        places = [*large, *small.values()]
        return cls([_buffer([tensors[i] for i in place]) for place in places], places, [*tensors])

    def unpack(self, buffers: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        results = list(self.originals)
        for buffer, indices in zip(buffers, self.places, strict=True):
            parts = _split(buffer, [self.originals[i] for i in indices])
            for index, part in zip(indices, parts, strict=True):
                original = self.originals[index]
                results[index] = tf.cast(tf.reshape(part, _shape(original)), original.dtype)
        return results


def _known(x: Any) -> bool:
    return isinstance(x, (np.ndarray, np.generic, tf.IndexedSlices, tf.Variable)) or (
        tf.is_tensor(x) or "__tf_tensor__" in dir(type(x))
    )


def _is_small(x: tf.Tensor) -> bool:
    size = x.shape.num_elements()
    return size is None or size < _SMALL


def _buffer(tensors: list[tf.Tensor]) -> tf.Tensor:
    """The tensors end to end, in the dtype they travel in."""
    parts = [tf.reshape(tf.cast(x, CARRIED[x.dtype]), [-1]) for x in tensors]
    return parts[0] if len(parts) == 1 else tf.concat(parts, 0)


def _split(buffer: tf.Tensor, originals: list[tf.Tensor]) -> list[tf.Tensor]:
    if len(originals) == 1:
        return [buffer]
    sizes = [x.shape.num_elements() for x in originals]
    if None in sizes:
        sizes = [tf.size(x) for x in originals]
    return list(tf.split(buffer, sizes))


def _shape(x: tf.Tensor) -> Any:
    return x.shape if x.shape.is_fully_defined() else tf.shape(x)
