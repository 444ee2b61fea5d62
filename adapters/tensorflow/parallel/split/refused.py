"""Layers that a mesh cannot hold: named before the first step."""

from __future__ import annotations

from typing import Any

import keras

from dream._errors import Unsupported
from dream.adapters.keras import private

_REFUSED: tuple[tuple[tuple[type[Any], ...], str], ...] = (
    ((keras.layers.RNN, keras.layers.Bidirectional, keras.layers.TimeDistributed),
     "a layer that loops over time"),
    ((keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D, keras.layers.SeparableConv1D,
      keras.layers.SeparableConv2D), "a convolution of each channel by itself"),
    ((keras.layers.SpectralNormalization,), "a layer that counts in a condition"),
)  # fmt: skip
"""What DTensor cannot lay out: lists of tensors, some gradients, and conditions."""


def check(model: Any) -> None:
    for layer in private.layers_of(model):
        for kinds, what in _REFUSED:
            if isinstance(layer, kinds):
                raise Unsupported(
                    f"DTensor cannot split {what}. Received: {layer.name!r} "
                    f"({type(layer).__name__}). Use 'mirrored', or model_parallel with "
                    "split='pipeline', which leave each layer whole."
                )
