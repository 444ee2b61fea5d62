"""The format in which a step's gradients and running statistics travel between ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, final

import keras

from dream._errors import Unsupported
from dream.adapters.keras import consistency
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.forward import forward
from dream.adapters.keras.model_description import model as canonical
from dream.adapters.keras.model_description.calls import recorded
from dream.mixed.consistency import Account
from dream.mixed.consistency import agree as agree_with
from dream.mixed.order import InOrder
from dream.mixed.resync import Resync
from dream.model_description import steps

Gradients = Sequence[Any]
"""One for each trainable variable; None where it took no part."""


class GradientFormat(ABC):
    @abstractmethod
    def pack(self, gradients: Gradients, states: Sequence[Any]) -> list[Any]:
        """Return what travels. states: variables."""

    @abstractmethod
    def unpack(
        self, packed: Sequence[Any], gradients: Gradients, states: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Return what came back, as (gradients, values of the states), each in its place."""


@final
class NativeFormat(GradientFormat):
    """For ranks of one framework, whose models are alike in order and layout."""

    def pack(self, gradients: Gradients, states: Sequence[Any]) -> list[Any]:
        return [*(g for g in gradients if g is not None), *(state.value for state in states)]

    def unpack(
        self, packed: Sequence[Any], gradients: Gradients, states: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        reduced = iter(packed)
        whole = [None if g is None else next(reduced) for g in gradients]
        return whole, list(reduced)


@final
class CanonicalFormat(GradientFormat):
    """For ranks of two frameworks: the canonical order and layout of one model's layers."""

    def __init__(self, model: Any, inputs: tuple[Any, ...]) -> None:
        """inputs: a batch, which shows in what order layers are called."""
        if not isinstance(model, keras.Model):
            raise Unsupported(
                "In a job of two frameworks a model must show its layers. Received: "
                f"{type(model).__name__}. Make it a keras.Model."
            )
        with recorded() as calls:
            forward(model, inputs, training=False)
        description = canonical.description(model, calls)
        self._order = InOrder(description, canonical.OPS)
        self._arrays = InOrder(description, steps.OPS)
        known = canonical.variables(model)
        self._variables = {name: known[name] for name in self._order.names}
        self._names = {id(v): name for name, v in self._variables.items()}
        self._model = model
        self._states: list[Any] = []

    def agree(self, optimizers: Sequence[Any], engine: Engine) -> None:
        """Compare the model over the ranks, and take rank 0's weights; optimizer states too where
        all ranks have Keras's."""
        states = consistency.statistics_of(self._model)
        layout = self._order.layout(self._order.names)
        summed = [*self._layout(self._model.trainable_variables), *self._layout(states)]
        own = consistency.states_layout(optimizers)
        mine = Account(engine.framework, "step", layout, summed, own)
        if agree_with(engine.communicator, mine):
            self._states = [v for optimizer in optimizers for v in optimizer.variables]
        self.take_rank_0s(engine)

    def take_rank_0s(self, engine: Engine) -> float:
        """Take rank 0's values, at the start and at each resync; return how far this rank's weights
        were from them."""
        if self._states:
            consistency.take_rank_0s(self._states, engine.communicator)
        own = {n: keras.ops.convert_to_numpy(v.value) for n, v in self._variables.items()}
        mine = self._arrays.listed(own, "value")
        first = engine.communicator.broadcast(mine)
        if engine.rank == 0:
            return 0.0
        for name, value in self._arrays.named(first, self._order.names, "value").items():
            self._variables[name].assign(value)
        return max(consistency.difference(a, b) for a, b in zip(mine, first, strict=True))

    def resync(self, engine: Engine) -> Resync:
        """Keep the ranks together from here on."""
        assert engine.resyncs is not None
        return engine.resyncs.add(engine.communicator, lambda: self.take_rank_0s(engine))

    def pack(self, gradients: Gradients, states: Sequence[Any]) -> list[Any]:
        present = self._present(gradients)
        values = {self._name(state): state.value for state in states}
        return [
            *self._order.listed(present, "gradient"),
            *self._order.listed(values, "value"),
        ]

    def unpack(
        self, packed: Sequence[Any], gradients: Gradients, states: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        present = self._present(gradients)
        cut = len(self._order.layout([*present]))
        reduced = self._order.named(packed[:cut], [*present], "gradient")
        names = [self._name(state) for state in states]
        values = self._order.named(packed[cut:], names, "value")
        whole = [
            None if g is None else reduced[self._name(v)]
            for g, v in zip(gradients, self._model.trainable_variables, strict=True)
        ]
        return whole, [values[name] for name in names]

    def _present(self, gradients: Gradients) -> dict[str, Any]:
        variables = self._model.trainable_variables
        pairs = zip(variables, gradients, strict=True)
        return {self._name(v): g for v, g in pairs if g is not None}

    def _layout(self, variables: Sequence[Any]) -> Any:
        return self._order.layout([self._name(v) for v in variables])

    def _name(self, variable: Any) -> str:
        name = self._names.get(id(variable))
        if name is None:
            raise Unsupported(
                "What this variable is to another framework is not known. Received: "
                f"{variable.path}. Build the model of Keras's own layers, or train it in Keras on "
                "all ranks with fit."
            )
        return name
