"""Keras models on torch, under strategies that cannot train them yet."""

from __future__ import annotations

import sys
from typing import Any

from dream._errors import Unsupported
from dream.adapters.pytorch.hooks import Patches


def is_keras(item: Any) -> bool:
    """Whether this is a layer or an optimizer of Keras's, or of a class made of one."""
    return any(base.__module__.partition(".")[0] == "keras" for base in type(item).__mro__)


def refuse_keras(item: Any, strategy: str) -> None:
    """Raise for a layer or an optimizer of Keras's."""
    if is_keras(item):
        raise Unsupported(
            f"Under {strategy!r} Keras models do not train on torch. Received: "
            f"{type(item).__name__}. Use 'mirrored' for it, KERAS_BACKEND=tensorflow, or a torch "
            "module."
        )


def forbid_fits(patches: Patches, strategy: str) -> None:
    """Have the loops of Keras models made before the block refused in it. Those made in it are
    refused as they are made."""
    keras = sys.modules.get("keras")
    if keras is None or not hasattr(keras, "Model"):  # its import may be under way
        return

    def refused(model: Any, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        refuse_keras(model, strategy)

    for loop in ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch"):
        patches.replace(keras.Model, loop, refused)
