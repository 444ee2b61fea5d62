"""The loss that a loop calls backward on, for the ranks of another framework, whose steps return
the global one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, final

import torch


@final
class ToldLoss:
    """Notes the scalar that backward starts from."""

    def __init__(self) -> None:
        self._value: torch.Tensor | None = None

    def wrap_backward(self, backward: Callable[..., None]) -> Callable[..., None]:
        """`torch.autograd.backward` that notes where it starts."""

        @wraps(backward)
        def wrapped(tensors: Any, *args: Any, **kwargs: Any) -> None:
            with self.said(tensors):
                backward(tensors, *args, **kwargs)

        return wrapped

    @contextmanager
    def said(self, tensors: Any) -> Iterator[None]:
        """Backward starts inside from these. One number is the loss; anything else is not known
        to be one."""
        alone = isinstance(tensors, (list, tuple)) and len(tensors) == 1
        only = tensors[0] if alone else tensors
        if isinstance(only, torch.Tensor) and only.numel() == 1:
            self._value = only.detach().reshape(())
        try:
            yield
        finally:
            self._value = None

    def last(self) -> torch.Tensor | None:
        """None where a backward pass was not seen to start from a loss."""
        return self._value
