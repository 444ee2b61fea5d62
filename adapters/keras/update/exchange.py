"""How parts' gradients become one, where that is not by their sum."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import keras

from dream._errors import Unsupported
from dream.update.update import Knobs


class Exchange(ABC):
    """In a step, compiled or not. All parts come out with the same bits."""

    @abstractmethod
    def __call__(self, variables: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """What stands for the mean of the parts' gradients.

        variables: Keras's, whose the gradients are; the same from step to step. gradients: dense,
        weighed so that their plain mean over the parts is that over the global batch.
        """


def exchanged(exchange: Exchange, variables: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
    """The same, with None for a variable that took no part."""
    pairs = [(v, g) for v, g in zip(variables, gradients, strict=True) if g is not None]
    found = iter(exchange(*zip(*pairs, strict=True)) if pairs else ())
    return [None if g is None else next(found) for g in gradients]


def check_unscaled(optimizer: Any, knobs: Knobs) -> None:
    """What is left behind in one scale cannot be added to what comes in another."""
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if scaled and knobs.compressed is not None and knobs.compressed.remembers:
        raise Unsupported(
            "What is not sent waits for the next gradient, and the loss scale changes meanwhile. "
            f"Received: {type(optimizer).__name__}, compression={knobs.compression!r}. Use "
            "compression='float16' or 'bfloat16', or precision='bfloat16', which needs no scale."
        )
