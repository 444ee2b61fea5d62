"""A model and its optimizers put onto a mesh: every variable laid out, batches too."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, final
from weakref import WeakSet

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dream._errors import Unsupported
from dream.adapters.keras import private
from dream.adapters.keras.consistency import by_name, metric_states
from dream.adapters.keras.hooks import variables_kept_by
from dream.adapters.tensorflow.parallel.consistency import Consistency
from dream.adapters.tensorflow.parallel.sharding import dtensor
from dream.adapters.tensorflow.parallel.sharding.layouts import DATA, Layouts, belongs_to, whole
from dream.adapters.tensorflow.parallel.sharding.variables import MeshVariable, hold
from dream.collectives import Communicator
from dream.model_description.layout import check_same

_REFUSED: tuple[tuple[tuple[type[Any], ...], str], ...] = (
    ((keras.layers.RNN, keras.layers.Bidirectional, keras.layers.TimeDistributed),
     "a layer that loops over time"),
    ((keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D, keras.layers.SeparableConv1D,
      keras.layers.SeparableConv2D), "a convolution of each channel by itself"),
    ((keras.layers.SpectralNormalization,), "a layer that counts in a condition"),
)  # fmt: skip
"""DTensor cannot lay them out: lists of tensors, some gradients, and conditions."""
_WORTH_TRIMMING = 2**18
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's own


@final
class MeshPlacement:
    """One strategy's mesh.

    data: how many parts a batch is dealt in.
    """

    def __init__(self, mesh: Any, layouts: Layouts, communicator: Communicator) -> None:
        self.mesh = mesh
        self.layouts = layouts
        self.data = int(mesh.dim_size(DATA))
        self._communicator = communicator
        self.consistency = Consistency(communicator)
        self._known: WeakSet[Any] = WeakSet()

    def making(self) -> AbstractContextManager[None]:
        """Inside, the variables of models are laid out as they are made, one by one, so that a
        model in parts is whole on no rank. What needs the whole model to know its layout waits."""
        layout = self.layouts.by_shape()
        return nullcontext() if layout is None else variables_kept_by(partial(self._new, layout))

    def _new(
        self,
        layout: Callable[[Sequence[int]], dtensor.Specs],
        variable: Any,
        value: Callable[[], Any],
    ) -> MeshVariable | None:
        if not variable.trainable:
            return None

        def first() -> NDArray[Any]:
            made = self.consistency.made(variable.path, tf.convert_to_tensor(value()))
            return np.asarray(made)

        with tf.init_scope():
            return self._laid_out(
                first, layout, gathers=self.layouts.gathers, trains=True, called=variable.name
            )

    def _laid_out(
        self,
        first: Callable[[], NDArray[Any]],
        layout: Callable[[Sequence[int]], dtensor.Specs],
        *,
        gathers: bool,
        trains: bool,
        called: str,
    ) -> MeshVariable:
        """A variable made in parts, so that no more than one is whole at a time."""
        with tf.device("CPU:0"):
            array = first()
        made = MeshVariable(
            array, self.mesh, layout(array.shape), self.consistency,
            gathers=gathers, trains=trains, called=called,
        )  # fmt: skip
        size = array.nbytes
        del array
        _trim(size)
        return made

    def place_model(self, model: Any) -> None:
        """Lay out a built model. Done once; again, what is new since."""
        if model in self._known and all(isinstance(v.value, MeshVariable) for v in model.variables):
            return
        self._known.add(model)
        _check_layers(model)
        if self._communicator.world_size > 1:
            check_same(self._communicator.all_gather_object(by_name(model.variables)))
        specs = self.layouts.of_model(model)
        for variable in model.variables:
            self._hold(variable, specs[variable.path], gathers=self.layouts.gathers)

    def place_metrics(self, model: Any) -> None:
        for variable in metric_states(model):
            self._hold(variable, whole(variable.shape), gathers=False)
        seed = private.shared_seed()
        if seed is not None:
            self._hold(seed.state, whole(seed.state.shape), gathers=False)

    def place_optimizer(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Make and lay out an optimizer's state. variables: the model's, laid out already."""
        if not optimizer.built:
            optimizer.build(variables)
        inner = getattr(optimizer, "inner_optimizer", None)
        for state in [*optimizer.variables, *(inner.variables if inner is not None else [])]:
            self._hold(state, self._of_state(state.name, state.shape, variables), gathers=False)

    def laying_out_states(self, variables: Sequence[Any]) -> AbstractContextManager[None]:
        """Inside, an optimizer's state is laid out as it is made, if its variables are."""
        if not all(isinstance(v.value, MeshVariable) for v in variables):
            return nullcontext()
        scope: AbstractContextManager[None] = tf.variable_creator_scope(
            partial(self._state, variables)
        )
        return scope

    def _state(self, variables: Sequence[Any], _make: Any, **given: Any) -> MeshVariable:
        start, name = given.pop("initial_value"), given["name"]
        return self._laid_out(
            lambda: np.asarray(start() if callable(start) else start),
            lambda shape: self._of_state(name, shape, variables),
            gathers=False, trains=bool(given["trainable"]), called=name,
        )  # fmt: skip

    def _of_state(self, name: str, shape: Sequence[int], variables: Sequence[Any]) -> dtensor.Specs:
        owner = belongs_to(name, shape, variables)
        if owner is None:
            return whole(shape)
        return self.layouts.of_state(tuple(shape), dtensor.specs_of(owner.value))

    def batch(self, batch: Any) -> Any:
        """A whole batch as DTensors: its samples shared out where their number allows it, else
        all of it on every device, which is as exact."""
        sizes = {int(np.shape(x)[0]) for x in leaves(batch) if np.ndim(x)}
        even = all(size % self.data == 0 and size for size in sizes)
        return private.tree.map_structure(lambda x: self._placed(x, even), batch)

    def constant(self, captured: Any) -> Any:
        """Return what a graph captured, whole on every device where it is an ordinary tensor with
        values, such as the mean that a layer was adapted to."""
        plain = isinstance(captured, tf.Tensor) and captured.dtype != tf.resource
        if not plain or not captured.shape.rank or dtensor.is_placed(captured):
            return captured
        return dtensor.placed(captured.numpy(), self.mesh, whole(captured.shape))

    def whole(self, result: Any) -> Any:
        """Make ordinary tensors of the results of a compiled step."""
        return private.tree.map_structure(
            lambda x: dtensor.whole(x, self.mesh) if tf.is_tensor(x) else x, result
        )

    def _placed(self, x: Any, even: bool) -> Any:
        if x is None:
            return None
        array = np.asarray(x)
        specs = whole(array.shape)
        if even and array.ndim:
            specs = (DATA, *specs[1:])
        return dtensor.placed(array, self.mesh, specs)

    def _hold(self, variable: Any, specs: dtensor.Specs, *, gathers: bool) -> None:
        if isinstance(variable.value, MeshVariable):
            return
        if self._communicator.world_size > 1:
            mine = keras.ops.convert_to_numpy(variable.value)
            variable.assign(self._communicator.broadcast(mine))
        hold(variable, self.mesh, specs, self.consistency, gathers=gathers)


def leaves(batch: Any) -> list[Any]:
    """The tensors of a batch, whatever its structure."""
    return [x for x in private.tree.flatten(batch) if x is not None]


def _check_layers(model: Any) -> None:
    for layer in private.layers_of(model):
        for kinds, what in _REFUSED:
            if isinstance(layer, kinds):
                raise Unsupported(
                    f"DTensor cannot split {what}. Received: {layer.name!r} "
                    f"({type(layer).__name__}). Use 'mirrored', or model_parallel with "
                    "split='pipeline', which leave each layer whole."
                )


def _trim(freed: int) -> None:
    """Give memory back to the system. glibc keeps what lies in holes: a model whose variables are
    made whole, cut and let go one by one would leave a process as large as if it held all."""
    if _malloc_trim is not None and freed >= _WORTH_TRIMMING:
        _malloc_trim(0)
