"""The message of a loss as it lies in one of DDP's buckets, and stays there from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, final

import torch

from dream.adapters.pytorch.loss.calls import SIZE, LossMessage


@final
class MessageSlot:
    """The numbers in a message's gradient, on a CPU: they are written there before a backward pass,
    which adds `nothing` to them and has them averaged, and are read there after it. A small model's
    step would feel the tensors that are made for it else.

    nothing: zeros of shape (SIZE,), from which backward starts.
    """

    def __init__(self, carrier: LossMessage) -> None:
        self._carrier = carrier
        self.nothing = torch.zeros_like(carrier, requires_grad=False)
        self._gradient: torch.Tensor | None = None
        self._laid = Struct(f"{SIZE}{'d' if carrier.dtype == torch.float64 else 'f'}")
        self._there = memoryview(b"")

    def write(self, message: Sequence[float]) -> bool:
        """Put a message there; False where DDP has not laid it there yet, or elsewhere since, and
        for numbers that are infinite in its dtype."""
        gradient = self._carrier.grad
        if gradient is None or gradient is not self._gradient:
            return False
        try:
            self._laid.pack_into(self._there, 0, *message)
        except OverflowError:
            return False
        return True

    def read(self) -> Sequence[float]:
        """Return what is there after a backward pass: the mean over the ranks."""
        gradient = self._carrier.grad
        assert gradient is not None
        if gradient is not self._gradient:
            there: Any = gradient.detach().numpy()  # a buffer, as NumPy says from Python 3.12 on
            self._gradient, self._there = gradient, memoryview(there).cast("B")
        return self._laid.unpack_from(self._there)
