"""TensorFlow's tensors, for the communicator: eagerly and inside a tf.function."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache, reduce
from itertools import groupby
from math import prod
from typing import Any, final

import numpy as np
import tensorflow as tf

from dream._errors import Unsupported
from dream.adapters.tensorflow.private import recording
from dream.collectives import Tensor, Tensors
from dream.collectives.tensors import check_moves
from dream.collectives.transport import Combine, Length

_NARROW = (tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16, tf.float16, tf.bfloat16)
_COMBINE: dict[Combine, Callable[..., tf.Tensor]] = {
    "sum": tf.add,
    "min": tf.minimum,
    "max": tf.maximum,
    "product": tf.multiply,
}


def scalars_in_rows(
    tensors: Sequence[tf.Tensor], add: Callable[[list[tf.Tensor]], list[tf.Tensor]]
) -> list[tf.Tensor]:
    """Return what `add` gives for tensors, of which neighbouring scalars of a dtype go as a row: it
    is two operations in a graph then, not two for each."""
    sent: list[tf.Tensor] = []
    counts: list[int] = []
    for dtype, run in groupby(tensors, lambda t: t.dtype if t.shape.rank == 0 else None):
        each = list(run)
        row = dtype is not None and len(each) > 1
        sent += [tf.stack(each)] if row else each
        counts += [len(each)] if row else [0] * len(each)
    sums = zip(add(sent), counts, strict=True)
    return [x for total, n in sums for x in (tf.unstack(total, num=n) if n else [total])]


@final
class TensorFlowTensors(Tensors):
    """TensorFlow's tensors, for the communicator.

    _begun: a call that was compared in a graph has not given its result yet.
    """

    def __init__(self) -> None:
        self._begun = False

    def take(self, x: Tensor) -> tf.Tensor:
        if self.in_graph():
            _check_ranks_meet()
        if isinstance(x, (np.ndarray, np.generic)):
            check_moves(x.dtype.name)
            return tf.convert_to_tensor(x)
        if tf.is_tensor(x) or isinstance(x, tf.Variable):
            return tf.convert_to_tensor(x)
        if isinstance(x, tf.IndexedSlices) or "__tf_tensor__" in dir(type(x)):
            return tf.convert_to_tensor(x)
        return _foreign(x)

    def give(self, result: tf.Tensor, like: Tensor, out: Tensor | None) -> Any:
        if self._begun and self.in_graph():
            self._begun = False
            with tf.control_dependencies([result]):
                _turn()
        if out is not None:
            return _written(result, out)
        return result.numpy() if isinstance(like, (np.ndarray, np.generic)) else result

    def gathered(
        self,
        x: Tensor,
        rank: int,
        gather: Callable[[Tensor], Tensor],
        add: Callable[[Tensor], Tensor],
    ) -> Tensor | None:
        if not (tf.is_tensor(x) and x.dtype.is_floating and x.shape.rank and recording()):
            return None

        rows = tf.shape(x, out_type=tf.int64)[0]
        start = tf.reduce_sum(gather(rows[tf.newaxis])[:rank])

        def followed(own: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            return gather(own), lambda gradient: add(gradient)[start : start + rows]

        return tf.custom_gradient(followed)(x)

    def key(self, x: tf.Tensor) -> Hashable:
        shape = tuple(x.shape) if x.shape.rank is not None else None
        return x.dtype, shape, tf.executing_eagerly()

    def dtype(self, x: tf.Tensor) -> str:
        name: str = x.dtype.name
        return name

    def shape(self, x: tf.Tensor) -> tuple[int | None, ...]:
        if x.shape.rank is None:
            raise Unsupported(
                "A collective must know how many dims a tensor has. Received: one of unknown "
                "rank in a tf.function. Give it an input_signature, or use tf.ensure_shape."
            )
        return tuple(x.shape)

    def sizes(self, x: tf.Tensor) -> list[Length]:
        known = self.shape(x)
        if None not in known:
            return list(known)
        found = tf.shape(x, out_type=tf.int64)
        return [found[i] if size is None else size for i, size in enumerate(known)]

    def flat(self, x: tf.Tensor, dtype: str, *, own: bool = False) -> tf.Tensor:
        if x.dtype.is_complex:
            x = tf.stack([tf.math.real(x), tf.math.imag(x)], -1)
        if x.dtype.name != dtype:
            x = tf.cast(x, dtype)
        return x if x.shape.rank == 1 else tf.reshape(x, [-1])

    def size(self, x: tf.Tensor) -> Length:
        return prod(self.sizes(x)) * (2 if x.dtype.is_complex else 1)

    def shaped(self, flat: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
        if like.dtype.is_complex:
            pairs = tf.reshape(flat, [*self.sizes(like), 2])
            return tf.complex(pairs[..., 0], pairs[..., 1])
        if like.shape.rank != 1 or self.in_graph():  # eagerly each op costs more than all else
            flat = tf.reshape(flat, self._shape(like))
        return flat if flat.dtype == like.dtype else tf.cast(flat, like.dtype)

    def words(self, x: tf.Tensor) -> tf.Tensor:
        if x.dtype == tf.bool:
            x = tf.cast(x, tf.uint8)
        if x.dtype.is_complex:
            x = tf.stack([tf.math.real(x), tf.math.imag(x)], -1)
        flat = x if x.shape.rank == 1 else tf.reshape(x, [-1])
        if x.dtype == tf.int32:
            return flat
        if x.dtype not in _NARROW:
            return tf.reshape(tf.bitcast(flat, tf.int32), [-1])
        each = 4 // x.dtype.size
        filled = tf.pad(flat, [[0, -tf.size(flat) % each]])
        return tf.bitcast(tf.reshape(filled, [-1, each]), tf.int32)

    def unworded(self, words: tf.Tensor, dtype: str, shape: Sequence[Length]) -> tf.Tensor:
        wanted = tf.as_dtype(dtype)
        if wanted.is_complex:
            pairs = self.unworded(words, wanted.real_dtype.name, [*shape, 2])
            return tf.complex(pairs[..., 0], pairs[..., 1])
        if wanted == tf.bool:
            return tf.cast(self.unworded(words, "uint8", shape), tf.bool)
        if wanted == tf.int32:
            return tf.reshape(words, _static(shape))
        if wanted not in _NARROW:
            each = wanted.size // 4
            return tf.reshape(tf.bitcast(tf.reshape(words, [-1, each]) if each > 1 else words,
                                         wanted), _static(shape))  # fmt: skip
        return tf.reshape(
            tf.reshape(tf.bitcast(words, wanted), [-1])[: prod(shape)], _static(shape)
        )

    def row(self, x: tf.Tensor) -> tf.Tensor:
        return tf.reshape(x, [1])

    def join(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        return parts[0] if len(parts) == 1 else tf.concat(parts, 0)

    def cut(self, x: tf.Tensor, lengths: Sequence[Length]) -> list[tf.Tensor]:
        return list(tf.split(x, _static(lengths), num=len(lengths)))

    def combine(self, flats: Sequence[tf.Tensor], op: Combine) -> tf.Tensor:
        return reduce(_COMBINE[op], flats)

    def over(self, flat: tf.Tensor, count: int) -> tf.Tensor:
        return flat / count

    def numbers(self, values: Sequence[Length]) -> tf.Tensor:
        wide = tf.cast(tf.stack(values), tf.int64) if values else tf.zeros(0, tf.int64)
        return tf.reshape(tf.bitcast(wide, tf.int32), [-1])

    def integers(self, words: tf.Tensor, count: int) -> list[Length]:
        wide = tf.bitcast(tf.reshape(words, [count, 2]), tf.int64)
        if self.in_graph():
            return list(tf.unstack(wide, num=count))
        return wide.numpy().tolist()  # type: ignore[no-any-return]

    def to_bytes(self, x: tf.Tensor) -> memoryview:
        return np.ascontiguousarray(x.numpy()).reshape(-1).view(np.uint8).data

    def from_bytes(self, data: bytearray, dtype: str, shape: Sequence[int]) -> tf.Tensor:
        array = np.frombuffer(data, tf.as_dtype(dtype).as_numpy_dtype).reshape(shape)
        return tf.convert_to_tensor(array)

    def in_graph(self) -> bool:
        return not tf.executing_eagerly()

    def after(
        self, act: Callable[[list[list[int]]], object], xs: list[tf.Tensor]
    ) -> list[tf.Tensor]:
        if not self.in_graph():
            act([list(x.shape) for x in xs])
            return xs

        def run(*shapes: Any) -> np.int32:
            act([shape.tolist() for shape in shapes])
            return np.int32(0)

        with tf.control_dependencies([_turn()]):
            done = tf.numpy_function(run, [tf.shape(x, out_type=tf.int64) for x in xs], tf.int32)
        with tf.control_dependencies([done]):
            _turn()
            self._begun = True
            return [tf.identity(x) for x in xs]

    def _shape(self, x: tf.Tensor) -> Any:
        return x.shape if x.shape.is_fully_defined() else tf.shape(x)


@cache
def _turns() -> tf.Variable:
    with tf.init_scope(), tf.device("CPU:0"):
        return tf.Variable(0, dtype=tf.int64, trainable=False)


def _turn() -> tf.Operation:
    """Keep a graph's calls in the order of the program, on every rank: TensorFlow orders ops
    on one variable; others lose their order where functions are inlined."""
    return _turns().assign_add(1, read_value=False)


def _static(sizes: Sequence[Length]) -> Any:
    """As a constant where every size is a number, else as a tensor."""
    if all(isinstance(size, int) for size in sizes):
        return list(sizes)
    return tf.stack([tf.cast(size, tf.int64) for size in sizes])


def _check_ranks_meet() -> None:
    """Refuse a collective that each device of a process makes in its own step."""
    context = tf.distribute.get_replica_context()
    if context is not None and context.num_replicas_in_sync > 1:
        raise Unsupported(
            "A communicator's ranks are processes: devices of one process do not meet in it. "
            f"Received: a collective in the step of one of {context.num_replicas_in_sync} devices. "
            "Start ranks with one device each: dream run -n."
        )


def _foreign(x: Any) -> tf.Tensor:
    """Another framework's tensor, by way of NumPy."""
    if hasattr(x, "__array__") and hasattr(x, "detach"):
        return tf.convert_to_tensor(x.detach().cpu().numpy())
    raise Unsupported(
        "A communicator takes tensors and NumPy arrays. Received: "
        f"{type(x).__name__}. Convert it first, or use the object collectives."
    )


def _written(result: tf.Tensor, out: Tensor) -> Any:
    if isinstance(out, tf.Variable):
        out.assign(tf.reshape(result, out.shape))
    elif isinstance(out, np.ndarray):
        np.copyto(out, result.numpy().reshape(out.shape), casting="no")
    else:
        raise Unsupported(
            "A TensorFlow tensor cannot be written to. Received: out= of type "
            f"{type(out).__name__}. Give a tf.Variable or a NumPy array."
        )
    return out
