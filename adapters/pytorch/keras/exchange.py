"""An exchange of torch's gradients, for those of a Keras model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from keras.src.backend.torch.core import convert_to_tensor

from dream.adapters.keras.update.exchange import Exchange
from dream.adapters.pytorch.compression.exchange import Exchanged


@final
class InKeras(Exchange):
    def __init__(self, exchanged: Exchanged) -> None:
        self._exchanged = exchanged

    def __call__(self, variables: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        with torch.no_grad():
            found = [convert_to_tensor(g).detach().clone() for g in gradients]
            self._exchanged.write_global([v.value for v in variables], found)
        return found
