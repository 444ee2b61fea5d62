"""Training calls in a lower precision: weights, gradients, the loss and evaluation stay float32."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, final

import torch
from torch.utils._pytree import tree_map

from dream._errors import Unsupported


@final
class Precision:
    """torch's autocast around a model's call; what comes out of it is float32 again, so that a
    loss is computed as before. device: "cpu" or "cuda"."""

    def __init__(self, name: str, device: str) -> None:
        self._name, self._device = name, device

    def casting(self) -> AbstractContextManager[Any]:
        """Where a model is called. Keras's models have policies of their own, float16 too."""
        if self._name != "bfloat16":
            raise Unsupported(
                "torch modules train in float32 or bfloat16. Received: "
                f"precision={self._name!r}. Use precision='bfloat16', which needs no loss scale."
            )
        return torch.autocast(self._device, torch.bfloat16)

    def restored(self, output: Any) -> Any:
        """A model's output in float32."""
        return tree_map(_whole, output)


def _whole(x: Any) -> Any:
    return x.float() if isinstance(x, torch.Tensor) and x.dtype == torch.bfloat16 else x
