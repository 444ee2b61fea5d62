"""What the ranks tell each other in a backward pass, where their tensors are on GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from dream.adapters.pytorch import devices
from dream.adapters.pytorch.loss.calls import SIZE, Numbers
from dream.adapters.pytorch.loss.factors import Factor
from dream.adapters.pytorch.loss.read_numbers import numbers_of


def message_of(numbers: Sequence[Factor], like: torch.Tensor) -> Numbers:
    """Return a message that goes with a loss, `like`, on whose device some numbers may be."""
    if not devices.is_away(like):
        return [float(each) for each in numbers]
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    message = torch.zeros(SIZE, dtype=dtype, device=like.device)
    for place, number in enumerate(numbers):
        if isinstance(number, torch.Tensor):
            message[place].copy_(number)
        elif number:  # filled by a kernel: an assignment would have the host wait for the GPU
            message[place].fill_(number)
    return message


@final
class LateMessage:
    """Numbers that to read at once would have the host wait for its GPU: they are read as the next
    backward pass begins, or the block ends, on every rank alike, when they have long been there.

    held: whether there are some. ends_in: the last operation of this rank's loss. near: whether the
    loss's value is not the exact one if its parts count differently.
    """

    def __init__(self) -> None:
        self.held = self.near = False
        self.ends_in = ""
        self._kept: torch.Tensor | None = None
        self._there: torch.cuda.Event | None = None

    def keep(self, message: torch.Tensor, ends_in: str, *, near: bool) -> None:
        """Have a message copied to the host, while both go on."""
        if _captures():
            return
        if self._kept is None or self._kept.dtype != message.dtype:
            self._kept = torch.empty_like(message, device="cpu", pin_memory=message.is_cuda)
        self._kept.copy_(message, non_blocking=True)
        self._there = None
        if message.is_cuda:  # maybe not the device that is current
            self._there = torch.cuda.current_stream(message.device).record_event()
        self.ends_in, self.near, self.held = ends_in, near, True

    def take(self) -> list[float] | None:
        """Return the message that was kept; None where there is no new one."""
        if not self.held or self._kept is None or _captures():
            return None
        self.held = False
        if self._there is not None:
            self._there.synchronize()
        return list(numbers_of(self._kept))


def _captures() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
