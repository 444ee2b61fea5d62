"""Layers that a mesh cannot hold: named before the first step."""

from __future__ import annotations

from typing import Any

import keras

from dream._errors import Unsupported
from dream.adapters.keras import private

_LOOPS = (keras.layers.RNN, keras.layers.Bidirectional, keras.layers.TimeDistributed)


def check(model: Any) -> None:
    """Refuse loops over time, whose lists of tensors DTensor cannot lay out."""
    for layer in private.layers_of(model):
        if isinstance(layer, _LOOPS):
            raise Unsupported(
                "DTensor cannot split a layer that loops over time. Received: "
                f"{layer.name!r} ({type(layer).__name__}). Use 'mirrored', or model_parallel with "
                "split='pipeline', which leave each layer whole."
            )
