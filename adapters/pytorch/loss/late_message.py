"""What the ranks told each other in a backward pass on GPUs."""

from __future__ import annotations

from typing import final

import torch

from dream.adapters.pytorch.loss.reads import numbers_of


@final
class LateMessage:
    """Numbers that to read at once would have the host wait for its GPU: they are read as the next
    backward pass begins, on every rank alike, when they have long been there."""

    def __init__(self) -> None:
        self._kept: torch.Tensor | None = None
        self._there: torch.cuda.Event | None = None
        self._held = False

    def keep(self, message: torch.Tensor) -> None:
        """Have a message copied to the host, while both go on."""
        if _captures():
            return
        if self._kept is None or self._kept.dtype != message.dtype:
            self._kept = torch.empty_like(message, device="cpu", pin_memory=message.is_cuda)
        self._kept.copy_(message, non_blocking=True)
        if message.is_cuda:
            self._there = torch.cuda.Event()
            self._there.record()
        self._held = True

    def take(self) -> list[float] | None:
        """Return the message that was kept; None where there is no new one."""
        if not self._held or self._kept is None or _captures():
            return None
        self._held = False
        if self._there is not None:
            self._there.synchronize()
        return list(numbers_of(self._kept))


def _captures() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
