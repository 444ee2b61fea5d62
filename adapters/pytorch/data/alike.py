"""A digest of a few samples of a dataset, to be compared between ranks."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from dream.adapters.pytorch.data.streams import digest_of
from dream.adapters.pytorch.randomness.generators import states, take
from dream.data.position import chained

_ALL = (True, True, True)


def digest_of_dataset(loader: DataLoader[Any]) -> int:
    """Return a digest of the length of a loader's data, and of a few samples where they can be
    had: not from a dataset that workers read, which may open its files on first use; and not where
    a sample is another each time it is read."""
    data: Any = loader.dataset
    try:
        length = len(data)
    except TypeError:
        return 0
    digest = chained(0, repr(length).encode())
    if loader.num_workers or not length:
        return digest
    for index in sorted({0, length // 2, length - 1}):
        once = _digest_of_sample(data, index)
        if once is None or once != _digest_of_sample(data, index):
            return digest
        digest = chained(digest, repr(once).encode())
    return digest


def _digest_of_sample(data: Any, index: int) -> int | None:
    """Read a sample, and leave the generators as they were."""
    before = states()
    try:
        return digest_of(data[index])
    except Exception:  # what takes other indices, or fails, does so in the loop as well
        return None
    finally:
        take(before, _ALL)
