"""This rank's part of a stream's batches: taken where a batch is collated, in workers too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, final

import torch

from dream._errors import Unsupported
from dream.adapters.pytorch.data.content import digest_of
from dream.data.partition import Share, micro_shares, share_of

Dealt = tuple[int, int, list[Any]]
"""Samples of a global batch, a digest of it, and this rank's part in micro-batches."""


@final
class DealtCollate:
    """A collate function that collates this rank's part of a batch.

    batched: whether it is given a list of samples, else a batch that the stream made.
    """

    def __init__(
        self, collate: Callable[[Any], Any], rank: int, parts: int, *, batched: bool
    ) -> None:
        self._collate = collate
        self._rank = rank
        self._parts = parts
        self._batched = batched
        self._micros = torch.zeros(1, dtype=torch.int64)

    def share_memory(self) -> None:
        """Have workers see what is set later."""
        self._micros.share_memory_()

    def set_micros(self, micros: int) -> None:
        """In how many micro-batches a part comes, at most; 0 for the whole batch on every
        rank."""
        self._micros[0] = micros

    def __call__(self, given: Any) -> Dealt:
        total = len(given) if self._batched else samples_in(given)
        micros = int(self._micros)
        if micros == 0:
            return total, 0, [self._collate(given)]
        share = share_of(total, self._rank, self._parts)
        parts, taken = [], 0
        for part in micro_shares(share, micros):
            first = self._rank + taken * self._parts
            # A collate function needs a sample to show its shape; the loader drops it again.
            cut = slice(first, first + part.count * self._parts, self._parts)
            parts.append(self._part(given, cut if part.count else slice(0, 1)))
            taken += part.count
        return total, digest_of(given), parts

    def _part(self, given: Any, cut: slice) -> Any:
        if self._batched:
            return self._collate(given[cut])
        return sliced(self._collate(given), cut)


def shares_of(total: int, rank: int, parts: int, micros: int) -> list[Share]:
    """What the parts of a batch count for."""
    return micro_shares(share_of(total, rank, parts), micros)


def samples_in(batch: Any) -> int:
    """Of a batch that the stream made: the length of what it holds."""
    lengths = {len(x) for x in _arrays(batch)}
    if len(lengths) != 1:
        raise Unsupported(
            "A stream of batches is dealt by their first dim. Received: a batch of "
            f"{type(batch).__name__} whose arrays have lengths {sorted(lengths)}. Give the loader "
            "a batch_size, or yield tensors alike in their first dim."
        )
    return int(lengths.pop())


def sliced(batch: Any, cut: slice) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch[cut]
    if isinstance(batch, dict):
        return type(batch)({key: sliced(value, cut) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(sliced(value, cut) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(sliced(value, cut) for value in batch)
    return batch


def _arrays(batch: Any) -> Iterator[Any]:
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    if isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _arrays(value)
    elif getattr(batch, "ndim", 0):
        yield batch
