"""A Keras model as `dream port-check` looks at it, on either backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, final

import keras
import numpy as np

from dream._errors import Unsupported
from dream.adapters.keras.model_description import model as canonical
from dream.adapters.keras.model_description.calls import LayerCall, between, recorded
from dream.adapters.keras.private import tree
from dream.strategies import registry
from dream.tools.port_check import probe
from dream.tools.port_check.probe import Array, Facts, Inputs, Loss, ModelPasses, Probe, called_with


@final
class KerasProbe(Probe):
    channels_first = False

    def __init__(self, model: Any, inputs: Inputs, *, as_is: bool) -> None:
        self._backend = str(keras.backend.backend())
        if self._backend not in registry.GRADIENTS:
            raise Unsupported(
                f"Gradients are taken on TensorFlow and torch. Received: Keras on {self._backend}. "
                "Set KERAS_BACKEND, or name --old-backend or --new-backend."
            )
        self._model = model
        self.as_is = as_is
        defined = canonical.describe(model).layers if model.built and _known_inputs(model) else ()
        self._given = {name: self._given_to_model(array, defined) for name, array in inputs.items()}
        with recorded() as calls:
            self._call()
        self._calls = calls
        self.description = canonical.description(model, calls)
        self._layers = canonical.layers(model)

    def keep_order(self, names: Set[str]) -> None:
        self.description = canonical.description(self._model, self._calls, in_order_given=names)

    def facts(self) -> Facts:
        return Facts(
            description=self.description,
            between=between(self._calls, self._layers),
            dropouts=[float(c.layer.rate) for c in self._calls
                      if isinstance(c.layer, keras.layers.Dropout) and not c.inner],
            given={name: tuple(array.shape) for name, array in self._given.items()},
            backend=f"keras on {self._backend}",
        )  # fmt: skip

    def read(self) -> dict[str, Array]:
        return {name: _array(v) for name, v in canonical.variables(self._model).items()}

    def write(self, arrays: Mapping[str, Array]) -> None:
        held = canonical.variables(self._model)
        for name, array in arrays.items():
            held[name].assign(array)

    def passes(self, loss: Loss) -> ModelPasses:
        held = canonical.variables(self._model)
        trained = {p.name: held[p.name] for layer in self.description.layers
                   for p in layer.parameters if p.trainable}  # fmt: skip
        values: list[float] = []
        shown: list[Array] = []

        def slopes(outputs: Sequence[Array]) -> list[Array]:
            arrays = [self._given_by_model(output) for output in outputs]
            shown.extend(arrays)
            floats = [np.issubdtype(array.dtype, np.floating) for array in arrays]
            value, found = loss([array for array, is_float in zip(arrays, floats, strict=True)
                                 if is_float])  # fmt: skip
            values.append(value)
            each = iter(found)
            return [self._slope(next(each)) if is_float else array
                    for array, is_float in zip(outputs, floats, strict=True)]  # fmt: skip

        differentiate = registry.load(registry.GRADIENTS[self._backend])
        with recorded() as calls:
            gradients = differentiate(
                lambda: tree.flatten(self._call()), list(trained.values()), slopes
            )
        found = {n: g for n, g in zip(trained, gradients, strict=True) if g is not None}
        given, gave = self._records(calls)
        return ModelPasses(shown, values[0], given, gave, self._gradients_by_role(found))

    def _call(self) -> Any:
        inputs, named = called_with(self._given)
        if named:
            return self._model(named, training=False)
        return self._model(inputs[0] if "x" in self._given else inputs, training=False)

    def _records(self, calls: Sequence[LayerCall]) -> tuple[dict[str, Array], dict[str, Array]]:
        given: dict[str, Array] = {}
        gave: dict[str, Array] = {}
        first = {id(call.layer): call for call in reversed(calls)}
        for layer in self.description.layers:
            call = first.get(id(self._layers[layer.name]))
            if call is not None and call.whole and layer.records:
                given[layer.name] = probe.given_to(layer, _array(call.given))
                gave[layer.name] = probe.given_by(layer, _array(call.before))
        return given, gave


def _known_inputs(model: Any) -> bool:
    return bool(getattr(model, "inputs", None))


def _array(x: Any) -> Array:
    """Copy to NumPy; what it has no dtype for, in float32."""
    if keras.backend.standardize_dtype(x.dtype) == "bfloat16":
        x = keras.ops.cast(x, "float32")
    return np.array(keras.ops.convert_to_numpy(x))
