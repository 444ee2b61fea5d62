"""What a batch goes through between the layers with parameters, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from dream.adapters.keras.model_description.calls import Call

_SHOWN = ("activation", "pool_size", "strides", "padding", "data_format", "rate", "axis",
          "negative_slope", "alpha", "target_shape", "dims", "size")  # fmt: skip
"""What is told of a layer without parameters."""


def between(calls: Sequence[Call], layers: Mapping[str, Any]) -> dict[str, list[str]]:
    """By the name of a layer of `layers`: what was called since the one before it; "" for what
    came after the last."""
    names = {id(layer): name for name, layer in layers.items()}
    found: dict[str, list[str]] = {}
    since: list[str] = []
    for call in calls:
        layer = call.layer
        if id(layer) in names:
            found.setdefault(names[id(layer)], since)
            since = _own_activation(layer)
        elif not layer.weights and not isinstance(layer, keras.Model) and not call.inner:
            since.append(_words(layer))
    found[""] = since
    return found


def _own_activation(layer: Any) -> list[str]:
    activation = getattr(layer, "activation", None)
    plain = activation is None or activation is keras.activations.linear
    name = getattr(activation, "__name__", activation)
    return [] if plain or hasattr(layer, "cell") else [f"activation={name}"]


def _words(layer: Any) -> str:
    config = layer.get_config()
    shown = [f"{key}={config[key]!r}" for key in _SHOWN if config.get(key) is not None]
    return f"{type(layer).__name__}({', '.join(shown)})"
