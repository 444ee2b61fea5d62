"""Variables that lie on a mesh, in the place of those that Keras made.

A tf.function sees them as DTensors; outside of one they read as ordinary whole tensors, so that
metrics, callbacks and files find what they find on one device. To read one that is in parts all
ranks do so together; `Consistency` has a rank that does it alone told at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, final
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dream._errors import Unsupported
from dream._patches import value_set
from dream.adapters.tensorflow.keras.private import put_in_place
from dream.adapters.tensorflow.parallel.consistency import Consistency, PartialVariable
from dream.adapters.tensorflow.parallel.sharding import dtensor
from dream.adapters.tensorflow.parallel.sharding.dtensor import Specs
from dream.adapters.tensorflow.private import is_branch

_as_they_lie: ContextVar[bool] = ContextVar("dream.as_they_lie", default=False)


_writes: ContextVar[dict[Any, MeshVariable] | None] = ContextVar("dream.writes", default=None)
"""The variables that the step which is being traced writes, by reference."""


@contextmanager
def writing_once() -> Iterator[None]:
    """Inside, a step that is traced writes each variable once, when all is computed: DTensor loses
    the order of two writes, and would keep either."""
    writes: dict[Any, MeshVariable] = {}
    with value_set(_writes, writes):
        yield
    for variable in writes.values():
        variable.write()


def as_they_lie() -> AbstractContextManager[None]:
    """Inside, variables read as shards: for the optimizer's arithmetic, which is by element."""
    return value_set(_as_they_lie, True)


@final
class MeshVariable(PartialVariable, dtensor.DVariable):  # type: ignore[misc]  # TensorFlow is untyped
    """A variable on a mesh.

    gathers: whether a forward pass is given the whole; else it is given the shards.

    What a tf.function has assigned is what it reads from then on, as a value: DTensor loses the
    order of an assignment and a later read, and would read what was there before. Gradients go to
    the variable, as those of a read do, and not on to what the value was computed of.
    """

    def __init__(
        self,
        array: NDArray[Any],
        mesh: Any,
        specs: Specs,
        consistency: Consistency,
        *,
        gathers: bool,
        trains: bool,
        called: str,
    ) -> None:
        """trains, called: `trainable` and `name`, words that TensorFlow takes for itself."""
        super().__init__(dtensor.placed(array, mesh, specs), trainable=trains, name=called)
        self._mesh = mesh
        self._specs = specs
        self._consistency = consistency
        self._gathers = gathers and any(specs)
        self._assigned: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._assigned_within: WeakSet[Any] = WeakSet()

    def value(self) -> tf.Tensor:
        if tf.executing_eagerly():
            return self.whole()
        now = self._now()
        if self._gathers and not _as_they_lie.get():
            return dtensor.relaid(now, self._mesh, (None,) * len(self._specs))
        return now

    def whole(self) -> tf.Tensor:
        """Outside of a tf.function: all of it. Every rank calls it."""
        if self.kept is not None:
            return tf.convert_to_tensor(self.kept)
        if any(self._specs):
            self._consistency.read(self.name[:-2])
        return dtensor.whole(super().value(), self._mesh)

    def local(self) -> list[tf.Tensor]:
        """Return the parts that lie on each of this process's devices."""
        return dtensor.local(super().value())

    def read_value(self) -> tf.Tensor:
        return self.value()

    def read_together(self) -> NDArray[Any]:
        found: NDArray[Any] = self.whole().numpy()
        return found

    def assign(
        self, value: Any, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Any:
        if tf.executing_eagerly():
            if dtensor.is_placed(value):  # as TensorFlow's arithmetic with variables gives it
                self._consistency.read(self.name[:-2])
                value = dtensor.whole(value, self._mesh)
            array = np.asarray(value).astype(self.dtype.as_numpy_dtype, copy=False)
            self._consistency.changed(array)
            super().assign(dtensor.placed(array, self._mesh, self._specs), read_value=False)
            return self
        value = tf.convert_to_tensor(value, self.dtype)
        graph, writes = _graph(), _writes.get()
        self._check_order(graph)
        self._assigned[graph] = value
        inside = is_branch(graph)
        while is_branch(graph):
            graph = graph.outer_graph
            self._assigned_within.add(graph)
        if inside or writes is None:
            return super().assign(value, use_locking, name, read_value)
        writes[self.ref()] = self
        return self

    def write(self) -> None:
        """Write what was assigned last to it."""
        super().assign(self._assigned[_graph()], read_value=False)

    def _check_order(self, graph: Any) -> None:
        """Refuse to assign within a branch and outside, in either order."""
        within = graph in self._assigned_within
        while not within and is_branch(graph):
            graph = graph.outer_graph
            within = graph in self._assigned
        if within:
            raise Unsupported(
                "On a mesh what a branch of tf.cond assigns may come before or after what is "
                f"assigned outside of it. Received: {self.name[:-2]}, assigned in both, as sums of "
                "gradients are that a branch sets to 0. Assign it once, outside, such as "
                "total * tf.cast(keeps, total.dtype), or use 'mirrored'."
            )

    def assign_add(
        self, delta: Any, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Any:
        return self.assign(self._current() + delta, use_locking, name, read_value)

    def assign_sub(
        self, delta: Any, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Any:
        return self.assign(self._current() - delta, use_locking, name, read_value)

    def _current(self) -> tf.Tensor:
        return self.whole() if tf.executing_eagerly() else self._now()

    def _now(self) -> tf.Tensor:
        """As it lies, in a tf.function."""
        graph = _graph()
        assigned = self._assigned.get(graph)
        if assigned is None and is_branch(graph):
            return self._before(graph)
        if graph in self._assigned_within:
            raise Unsupported(
                "On a mesh what a branch of tf.cond has assigned may be read as it was before. "
                f"Received: {self.name[:-2]}, read after it, as an optimizer with "
                "gradient_accumulation_steps= and use_ema=True, or constraints, does. Remove one "
                "of them, or use 'mirrored'."
            )
        if assigned is None:
            return super().value()
        if not self.trainable:
            return tf.stop_gradient(assigned)
        read = super().value()
        return tf.stop_gradient(assigned) + (read - tf.stop_gradient(read))  # and 0 of it

    def _before(self, graph: Any) -> tf.Tensor:
        """As it lies where the branches begin: read within, it may be what is assigned behind."""
        outer = graph.outer_graph
        with outer.as_default():
            assigned = self._assigned.get(outer)
            if assigned is None and is_branch(outer):
                return self._before(outer)
            return super().value() if assigned is None else tf.stop_gradient(assigned)


def _graph() -> Any:
    return tf.compat.v1.get_default_graph()


def hold(
    variable: Any, mesh: Any, specs: Specs, consistency: Consistency, *, gathers: bool
) -> None:
    """Have a Keras variable lie on a mesh from now on."""
    own = variable.value
    if not isinstance(own, MeshVariable):
        made = MeshVariable(
            np.asarray(own), mesh, specs, consistency,
            gathers=gathers, trains=own.trainable, called=own.name[:-2],
        )  # fmt: skip
        put_in_place(variable, made)
