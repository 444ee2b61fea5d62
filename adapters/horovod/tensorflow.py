"""The ring as a wire of TensorFlow, eagerly and inside a tf.function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.tensorflow import mpi_ops

from dream._topology import Cluster
from dream.adapters.horovod._ring import explained, group_of, stand_in
from dream.adapters.tensorflow import runtime
from dream.collectives import Wire
from dream.collectives.transport import Combine, Length

_OPS: dict[Combine, int] = {
    "sum": mpi_ops.Sum, "min": mpi_ops.Min, "max": mpi_ops.Max, "product": mpi_ops.Product
}  # fmt: skip


def connect(place: Cluster, reduction: str) -> Wire:
    """The wire of the job's ranks in the ring."""
    del reduction
    runtime.waits_in_functions()
    stand_in(mpi_ops, place, "tensorflow")
    return Ring(hvd.global_process_set)


@final
class Ring(Wire):
    """Some ranks of the job, in Horovod's ring.

    The core matches tensors by name, and TensorFlow gives it the name of a graph's node. So each
    collective is a small function of its own, in which that name is the one that torch's side
    takes, wherever it is called from. A variable that they all write keeps them in order.
    """

    def __init__(self, ranks: Any) -> None:
        self._ranks = ranks
        self._members = list(ranks.ranks or range(hvd.size()))
        self._functions: dict[tuple[Any, ...], Any] = {}
        with tf.init_scope(), tf.device("CPU:0"):
            self._order = tf.Variable([0], dtype=tf.int64, trainable=False)  # which it stays

    @property
    def name(self) -> str:
        return "horovod"

    def all_reduce(self, buffers: list[tf.Tensor], op: Combine) -> list[tf.Tensor]:
        def one(buffer: tf.Tensor, index: int) -> tf.Tensor:
            name = f"allreduce.dream.{op}.{index}"
            return mpi_ops._allreduce(
                buffer, name=name, op=_OPS[op], ignore_name_scope=True, process_set=self._ranks
            )

        return self._each((op,), buffers, one)

    def broadcast(self, buffers: list[tf.Tensor], root: int) -> list[tf.Tensor]:
        def one(buffer: tf.Tensor, index: int) -> tf.Tensor:
            return mpi_ops.broadcast(
                buffer,
                self._members[root],
                name=f"broadcast.dream.{index}",
                ignore_name_scope=True,
                process_set=self._ranks,
            )

        return self._each(("broadcast", root), buffers, one)

    def all_gather(self, buffer: tf.Tensor) -> tf.Tensor:
        def one(buffer: tf.Tensor, index: int) -> tf.Tensor:
            del index
            return mpi_ops.allgather(
                buffer, name="allgather.dream", ignore_name_scope=True, process_set=self._ranks
            )

        (whole,) = self._each(("all_gather",), [buffer], one)
        return whole

    def all_to_all(
        self, buffer: tf.Tensor, sends: Sequence[Length], receives: Sequence[Length]
    ) -> tf.Tensor:
        del receives  # the core tells the ranks itself

        def act(buffer: tf.Tensor, splits: tf.Tensor) -> list[tf.Tensor]:
            return [
                mpi_ops.alltoall(
                    buffer,
                    splits=splits,
                    name="alltoall.dream",
                    ignore_name_scope=True,
                    process_set=self._ranks,
                )[0]
            ]

        splits = tf.cast(tf.stack(list(sends)), tf.int32)
        (result,) = self._call(("all_to_all",), act, [buffer, splits])
        return result

    def group(self, ranks: Sequence[int]) -> Wire | None:
        chosen = group_of([self._members[rank] for rank in ranks], hvd)
        return None if chosen is None else Ring(chosen)

    def close(self) -> None:
        """The ring stays up for what comes later in the process; it ends with it."""

    def _each(
        self,
        key: tuple[Any, ...],
        buffers: list[tf.Tensor],
        one: Callable[[tf.Tensor, int], tf.Tensor],
    ) -> list[tf.Tensor]:
        def act(*buffers: tf.Tensor) -> list[tf.Tensor]:
            return [
                buffer if buffer.shape == (0,) else one(buffer, index)
                for index, buffer in enumerate(buffers)
            ]

        return self._call(key, act, buffers)

    def _call(
        self, key: tuple[Any, ...], act: Callable[..., list[tf.Tensor]], inputs: list[tf.Tensor]
    ) -> list[tf.Tensor]:
        empty = tuple(x.shape == (0,) for x in inputs)
        key = (*key, *(x.dtype for x in inputs), empty)
        if key not in self._functions:
            self._functions[key] = self._made(act, inputs)
        with _translated():
            return list(self._functions[key](*inputs))

    def _turn(self) -> tf.Tensor:
        """Return what the variable holds, once it is this operation's turn. It is assigned to:
        TensorFlow's optimizer leaves out what adds nothing."""
        return self._order.assign([0]).value()

    def _made(self, act: Callable[..., list[tf.Tensor]], inputs: list[tf.Tensor]) -> Any:
        """`act` as a function of flat tensors of any length, on the CPU. Eagerly too: only the ops
        of a graph have the names that the ring goes by, here and in another framework."""

        def run(*tensors: tf.Tensor) -> list[tf.Tensor]:
            with tf.device("CPU:0"):
                zero = self._turn()
                results = act(*[_not_constant(x, zero) for x in tensors])
                # a rank that has no use for the result must take part all the same
                with tf.control_dependencies(results):
                    self._turn()
                return results

        signature = [tf.TensorSpec([0 if x.shape == (0,) else None], x.dtype) for x in inputs]
        with tf.init_scope():
            function = tf.function(run, autograph=False, jit_compile=False)
            return function.get_concrete_function(*signature)


def _not_constant(x: tf.Tensor, zero: tf.Tensor) -> tf.Tensor:
    """Return `x`, of shape (n,), cut from where a variable says. The core's ops are not marked as
    having effects: TensorFlow's optimizer would run them itself, once, where all of their inputs
    are constant."""
    return x if x.shape == (0,) else tf.slice(x, zero, [-1])


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except tf.errors.OpError as error:
        raise explained(error) from error
