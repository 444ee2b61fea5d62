"""Keras's attention and recurrent layers."""

from __future__ import annotations

from typing import Any

import keras

from dream.adapters.keras.model_description.found import Found, whole
from dream.model_description.layers import Part
from dream.model_description.steps import Reshape


def attention(layer: Any) -> Found:
    inner = {"query": layer.query_dense, "key": layer.key_dense, "value": layer.value_dense,
             "output": layer.output_dense}  # fmt: skip
    roles = {
        f"{dense.name}/{name}": f"{role}_{name}"
        for role, dense in inner.items()
        for name in ("kernel", "bias")
    }
    return Found("attention", whole(layer, **roles), {"dropout": layer.dropout})


def lstm(layer: Any) -> Found:
    return _recurrent(layer, "lstm", {})


def gru(layer: Any) -> Found:
    found = _recurrent(layer, "gru", {})
    name = _cell_name(layer, "bias")
    bias = found.parts.get(name)
    if bias is not None and len(bias[0].shape) == 2:  # reset_after: (2, 3 units)
        _, width = bias[0].shape
        row = Reshape((1, width), (width,))
        rows = [Part(role, (1, width), (row,)) for role in ("input_bias", "recurrent_bias")]
        found.parts = {**found.parts, name: tuple(rows)}
    return found


def rnn(layer: Any) -> Found:
    return _recurrent(layer, "rnn", {})


def _recurrent(layer: Any, kind: str, settings: dict[str, Any]) -> Found:
    names = ("kernel", "recurrent_kernel", "bias")
    parts = whole(layer, **{_cell_name(layer, name): name for name in names})
    cell = getattr(layer, "cell", layer)
    for name in ("activation", "recurrent_activation"):
        if hasattr(cell, name):
            settings[name] = keras.activations.serialize(getattr(cell, name))
    if cell is not layer:
        settings["reverse"] = layer.go_backwards
    return Found(kind, parts, settings)


def _cell_name(layer: Any, name: str) -> str:
    cell = getattr(layer, "cell", None)
    return name if cell is None else f"{cell.name}/{name}"
