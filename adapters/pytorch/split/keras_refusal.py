"""Keras models on torch, which these strategies do not split."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from torch import nn

from dream._errors import Unsupported
from dream.adapters.pytorch.patches import Patches


def is_keras(module: nn.Module) -> bool:
    """Whether this is a Keras layer."""
    return any(base.__module__ == "keras.src.layers.layer" for base in type(module).__mro__)


def refuse(strategy: str) -> NoReturn:
    raise Unsupported(
        f"A Keras model on torch cannot be split. Received: strategy {strategy!r} with a Keras "
        "model and KERAS_BACKEND=torch. Use 'mirrored' for it, or KERAS_BACKEND=tensorflow, or "
        "a torch module."
    )


def refuse_training(patches: Patches, strategy: str) -> None:
    """Have Keras models that were made before the block refuse to be trained in it."""
    keras = sys.modules.get("keras")
    if keras is None or not hasattr(keras, "Model"):
        return

    def refusing(*_: Any, **__: Any) -> NoReturn:
        refuse(strategy)

    for name in ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch"):
        patches.replace(keras.Model, name, refusing)
