"""In which form a step's gradients and running statistics travel between ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, final

import keras

from dream._errors import Unsupported
from dream.adapters.keras import alike
from dream.adapters.keras.calling import predict
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.model_description import model as canonical
from dream.adapters.keras.model_description.calls import recorded
from dream.adapters.keras.steps import statistics_of
from dream.mixed import consistency
from dream.mixed.consistency import Account
from dream.mixed.order import InOrder
from dream.mixed.resync import Resync
from dream.model_description import steps

Gradients = Sequence[Any]
"""One for each trainable variable; None where it took no part."""


class Form(ABC):
    @abstractmethod
    def listed(self, gradients: Gradients, states: Sequence[Any]) -> list[Any]:
        """What travels. states: variables."""

    @abstractmethod
    def unlisted(
        self, listed: Sequence[Any], gradients: Gradients, states: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """What came back, as (gradients, values of the states), each in its place."""


@final
class AsItIs(Form):
    """Between ranks of one framework, whose models are alike in order and layout."""

    def listed(self, gradients: Gradients, states: Sequence[Any]) -> list[Any]:
        return [*(g for g in gradients if g is not None), *(state.value for state in states)]

    def unlisted(
        self, listed: Sequence[Any], gradients: Gradients, states: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        reduced = iter(listed)
        whole = [None if g is None else next(reduced) for g in gradients]
        return whole, list(reduced)


@final
class Canonical(Form):
    """Between ranks of two frameworks: in the canonical order and layout of one model's layers."""

    def __init__(self, model: Any, inputs: tuple[Any, ...]) -> None:
        """inputs: a batch, which shows in what order layers are called."""
        if not isinstance(model, keras.Model):
            raise Unsupported(
                "In a job of two frameworks a model must show its layers. Received: "
                f"{type(model).__name__}. Make it a keras.Model."
            )
        with recorded() as calls:
            predict(model, inputs, training=False)
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
        states = statistics_of(self._model)
        layout = self._order.layout(self._order.names)
        summed = [*self._layout(self._model.trainable_variables), *self._layout(states)]
        mine = Account(engine.framework, "step", layout, summed, alike.states_layout(optimizers))
        if consistency.agree(engine.communicator, mine):
            self._states = [v for optimizer in optimizers for v in optimizer.variables]
        self.take_rank_0s(engine)

    def take_rank_0s(self, engine: Engine) -> float:
        """Rank 0's values, at the start and at each resync; how far this rank's weights were from
        them."""
        if self._states:
            alike.take_rank_0s(self._states, engine.communicator)
        own = {n: keras.ops.convert_to_numpy(v.value) for n, v in self._variables.items()}
        mine = self._arrays.listed(own, "value")
        first = engine.communicator.broadcast(mine)
        if engine.rank == 0:
            return 0.0
        for name, value in self._arrays.named(first, self._order.names, "value").items():
            self._variables[name].assign(value)
        return max(alike.apart(a, b) for a, b in zip(mine, first, strict=True))

    def resync(self, engine: Engine) -> Resync:
        """What keeps the ranks together from here on."""
        assert engine.resyncs is not None
        return engine.resyncs.add(engine.communicator, lambda: self.take_rank_0s(engine))

    def listed(self, gradients: Gradients, states: Sequence[Any]) -> list[Any]:
        present = self._present(gradients)
        values = {self._name(state): state.value for state in states}
        return [
            *self._order.listed(present, "gradient"),
            *self._order.listed(values, "value"),
        ]

    def unlisted(
        self, listed: Sequence[Any], gradients: Gradients, states: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        present = self._present(gradients)
        cut = len(self._order.layout([*present]))
        reduced = self._order.named(listed[:cut], [*present], "gradient")
        names = [self._name(state) for state in states]
        values = self._order.named(listed[cut:], names, "value")
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
