"""A model and its optimizers put onto a mesh: every variable laid out, batches too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, final
from weakref import WeakSet

import keras
import numpy as np
import tensorflow as tf

from dream._layout import check_same
from dream.adapters.keras import private
from dream.adapters.keras.consistency import by_name, metric_states
from dream.adapters.keras.hooks import variables_kept_by
from dream.adapters.tensorflow.parallel.split import dtensor, freed, refused
from dream.adapters.tensorflow.parallel.split.held import Held, hold
from dream.adapters.tensorflow.parallel.split.layouts import DATA, Layouts, belongs_to, whole
from dream.adapters.tensorflow.parallel.split.together import Together
from dream.collectives import Communicator


@final
class Onto:
    """One strategy's mesh.

    data: how many parts a batch is dealt in.
    """

    def __init__(self, mesh: Any, layouts: Layouts, communicator: Communicator) -> None:
        self.mesh = mesh
        self.layouts = layouts
        self.data = int(mesh.dim_size(DATA))
        self._communicator = communicator
        self.together = Together(communicator)
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
    ) -> Held | None:
        if not variable.trainable:
            return None
        with tf.init_scope(), tf.device("CPU:0"):
            first = tf.convert_to_tensor(value())
            array = np.asarray(self.together.made(variable.path, first))
        del first
        made = Held(
            array, self.mesh, layout(array.shape), self.together,
            gathers=self.layouts.gathers, trains=True, called=variable.name,
        )  # fmt: skip
        size = array.nbytes
        del array
        freed.give_back(size)
        return made

    def model(self, model: Any) -> None:
        """Lay out a built model. Done once; again, what is new since."""
        if model in self._known and all(isinstance(v.value, Held) for v in model.variables):
            return
        self._known.add(model)
        refused.check(model)
        if self._communicator.world_size > 1:
            check_same(self._communicator.all_gather_object(by_name(model.variables)))
        specs = self.layouts.of_model(model)
        for variable in model.variables:
            self._hold(variable, specs[variable.path], gathers=self.layouts.gathers)

    def metrics(self, model: Any) -> None:
        for variable in metric_states(model):
            self._hold(variable, whole(variable.shape), gathers=False)
        seed = private.shared_seed()
        if seed is not None:
            self._hold(seed.state, whole(seed.state.shape), gathers=False)

    def optimizer(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Make and lay out an optimizer's state. variables: the model's, laid out already."""
        if not optimizer.built:
            optimizer.build(variables)
        inner = getattr(optimizer, "inner_optimizer", None)
        for state in [*optimizer.variables, *(inner.variables if inner is not None else [])]:
            self._hold(state, self._of_state(state.name, state.shape, variables), gathers=False)

    def states(self, variables: Sequence[Any]) -> AbstractContextManager[None]:
        """Inside, an optimizer's state is laid out as it is made, if its variables are."""
        if not all(isinstance(v.value, Held) for v in variables):
            return nullcontext()
        scope: AbstractContextManager[None] = tf.variable_creator_scope(
            partial(self._state, variables)
        )
        return scope

    def _state(self, variables: Sequence[Any], _make: Any, **given: Any) -> Held:
        """A state laid out as it is made, so that no more than one is whole at a time."""
        with tf.device("CPU:0"):
            start = given["initial_value"]
            array = np.asarray(start() if callable(start) else start)
        del start, given["initial_value"]
        made = Held(
            array, self.mesh, self._of_state(given["name"], array.shape, variables), self.together,
            gathers=False, trains=bool(given["trainable"]), called=given["name"],
        )  # fmt: skip
        size = array.nbytes
        del array
        freed.give_back(size)
        return made

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

    def whole(self, result: Any) -> Any:
        """What a compiled step gave, as ordinary tensors."""
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
        if isinstance(variable.value, Held):
            return
        if self._communicator.world_size > 1:
            mine = keras.ops.convert_to_numpy(variable.value)
            variable.assign(self._communicator.broadcast(mine))
        hold(variable, self.mesh, specs, self.together, gathers=gathers)


def leaves(batch: Any) -> list[Any]:
    """The tensors of a batch, whatever its structure."""
    return [x for x in private.tree.flatten(batch) if x is not None]
