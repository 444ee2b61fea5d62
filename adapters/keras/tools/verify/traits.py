"""What a Keras model is like, as far as it bears on equality with one device."""

from __future__ import annotations

from typing import Any

from dream.adapters.keras import consistency, private
from dream.tools.recording.reading import Traits

_TORCH = "_torch_params."
"""Keras on torch keeps a model's variables under this name, and those of its parts once more."""


def traits(model: Any) -> Traits:
    """Read off the model's layers. Seeds and metrics are none of its weights."""
    weights = {variable.path for variable in model.weights}

    def named(name: str) -> str | None:
        path = name.removeprefix(_TORCH)
        return path if path in weights else None

    return Traits(
        dtype=str(model.dtype_policy.compute_dtype),
        trained={variable.path for variable in model.trainable_variables},
        draws=[layer.name for layer in private.layers_of(model) if private.own_seeds(layer)],
        statistics=consistency.local_statistics(model),
        named=named,
    )
