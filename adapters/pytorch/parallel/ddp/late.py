"""Gradients averaged once an update's last backward pass has ended, so that a rank whose memory ran
out in the midst of the update can tell so in their place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import add
from typing import NoReturn, final

import torch
from torch import nn

from dream._errors import Unsupported
from dream.adapters.pytorch import devices
from dream.adapters.pytorch.loss.calls import SIZE, Numbers
from dream.adapters.pytorch.loss.read_numbers import numbers_of
from dream.collectives import Communicator
from dream.update import fitting

_BUCKET = 25.0
"""MB, as DDP has them."""
_LARGE = 1 << 20
"""Bytes of what costs more by being packed than by a call of its own."""


@final
class LateReduction:
    """Reduces the gradients of one module after its backward. means: of the messages that
    travelled."""

    means: Numbers = ()

    def __init__(
        self, trained: Sequence[nn.Parameter], ranks: Communicator, bucket_mb: float | None
    ) -> None:
        self._ranks = ranks.unchecked()
        self._buckets = [*_buckets(trained, (bucket_mb or _BUCKET) * 1e6)]
        self._message: Numbers = ()

    def ride(self, message: Numbers, *, begins: bool) -> None:
        """Those of an update's micro-batches are added up."""
        if begins:
            self._message = message
        elif isinstance(message, torch.Tensor) and isinstance(self._message, torch.Tensor):
            self._message = self._message + message
        else:
            self._message = [*map(add, self._message, message)]

    def reduce(self) -> None:
        """Average gradients, on every rank that has come through. What no rank has a gradient of
        has none. Raises `RanOut` where one has not; gradients are nobody's then."""
        first, *rest = self._buckets
        missing = [p for bucket in self._buckets for p in bucket if p.grad is None]
        self.means = self._tell(fitting.WENT_WELL, self._message, [_gradient(p) for p in first])
        for bucket in rest:
            self._average([_gradient(p) for p in bucket])
        for parameter in missing:
            if parameter.grad is not None and not parameter.grad.any():
                parameter.grad = None

    def give_up(self, word: float) -> NoReturn:
        """Tell the others that memory ran out. Gradients of this rank are gone already."""
        self._tell(word, [0.0] * SIZE, [torch.zeros_like(p) for p in self._buckets[0]])
        raise AssertionError("a rank hears what it tells")

    def _tell(self, word: float, message: Numbers, gradients: list[torch.Tensor]) -> Numbers:
        """Have the first bucket travel, with the message and the word that decides on the rest."""
        like = gradients[0]
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        own = torch.as_tensor(message, dtype=dtype, device=like.device)
        told = torch.cat([own, own.new_tensor([word])])
        self._average([told, *gradients])
        *numbers, heard = numbers_of(told)  # on a GPU this waits for it
        fitting.hear(heard)
        return told[:-1] if devices.is_away(told) else numbers

    def _average(self, tensors: list[torch.Tensor]) -> None:
        """Small ones travel packed, large ones by themselves and where they lie."""
        small = [t for t in tensors if t.nbytes < _LARGE]
        if small:
            self._ranks.all_reduce(small, out=small)
        for tensor in tensors:
            if tensor.nbytes >= _LARGE:
                self._ranks.all_reduce(tensor, out=tensor)


@torch.no_grad()
def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    if parameter.grad.is_sparse:
        raise Unsupported(
            "Sparse gradients are reduced while backward runs, which accumulate='auto' and "
            f"split='layers' do not. Received: one of shape {tuple(parameter.shape)}. Pass "
            "sparse=False, or give a number of micro-batches."
        )
    return parameter.grad


def _buckets(trained: Sequence[nn.Parameter], most: float) -> Iterator[list[nn.Parameter]]:
    """Runs of parameters of so many bytes on one device, or of one that has more."""
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in trained:
        size += parameter.nbytes
        if bucket and (size > most or parameter.device != bucket[0].device):
            yield bucket
            bucket, size = [], parameter.nbytes
        bucket.append(parameter)
    yield bucket
