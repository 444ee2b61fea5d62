"""What is in samples and tensors, as a number: to be compared between ranks, or with later."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Self, final

import numpy as np
import torch
from torch.utils.data import DataLoader

from dream.adapters.pytorch.private import tree_leaves
from dream.adapters.pytorch.randomness.generators import states, take
from dream.adapters.pytorch.randomness.own_generators import held_by, states_of, take_back
from dream.collectives import Communicator
from dream.data.position import chained
from dream.mixed.order import Targets
from dream.mixed.resync import Resyncs

_ALL = (True, True, True)
_DEEP = 3
"""Datasets that are looked into, each of which takes samples of the next."""
_GLANCE = 1024
"""Elements of each array that are looked at."""
_MOST = 1 << 18
"""Elements of a tensor that are looked at."""
_FEW = 1 << 16
"""Where it is not by their bytes."""


def digest_of(value: Any, digest: int = 0) -> int:
    """Chain tensors, arrays, numbers and text, nested; of anything else, its type."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu()
        value = (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    if isinstance(value, np.ndarray):
        digest = chained(digest, repr(value.shape).encode())
        if value.dtype.hasobject:
            return digest_of(value.reshape(-1)[:_GLANCE].tolist(), digest)
        return chained(digest, np.ascontiguousarray(value.reshape(-1)[:_GLANCE]).tobytes())
    if isinstance(value, dict):
        for key, inner in value.items():
            digest = digest_of(inner, chained(digest, repr(key).encode()))
        return digest
    if isinstance(value, (list, tuple)):
        for inner in value:
            digest = digest_of(inner, digest)
        return digest
    known = isinstance(value, (int, float, complex, str, bytes, bool, np.generic, type(None)))
    return chained(digest, repr(value if known else type(value).__name__).encode())


def numbers_of(dataset: Any) -> list[tuple[dict[str, Any], str, float]]:
    """What a dataset, or that which it takes samples of, has for numbers: its next samples may go
    by how many it has counted."""
    found: list[tuple[dict[str, Any], str, float]] = []
    for _ in range(_DEEP):
        own = getattr(dataset, "__dict__", {})
        known = {**vars(type(dataset)), **own}
        found += [(own, name, x) for name, x in known.items() if type(x) in (int, float)]
        dataset = getattr(dataset, "dataset", None)
    return found


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
    held = held_by(data)
    for index in sorted({0, length // 2, length - 1}):
        once = _digest_of_sample(data, index, held)
        if once is None or once != _digest_of_sample(data, index, held):
            return digest
        digest = chained(digest, repr(once).encode())
    return digest


def _digest_of_sample(data: Any, index: int, held: list[Any]) -> int | None:
    """Read a sample, and leave generators and numbers as they were. held: the dataset's own."""
    before, own, counted = states(), states_of(held), numbers_of(data)
    try:
        return digest_of(data[index])
    except Exception:  # what takes other indices, or fails, does so in the loop as well
        return None
    finally:
        take(before, _ALL)
        take_back(held, own)
        for owner, name, value in counted:
            owner[name] = value


def contents_of(x: torch.Tensor) -> int:
    """Return a number that differs where its bytes do, or, of a large tensor, where some of them
    that lie evenly in it do; and where shapes do."""
    flat = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    flat = flat.detach().resolve_neg().reshape(-1)
    flat = flat[:: len(flat) // _MOST + 1].to("cpu").clone()  # NumPy marks memory that it is shown
    given = flat.contiguous().view(torch.uint8).numpy().data
    return zlib.crc32(given, zlib.crc32(repr(tuple(x.shape)).encode()))


def rough_contents_of(x: torch.Tensor) -> float:
    """Return a number that differs where its numbers do, by more than they are rounded, or, of a
    large tensor, where some of them do; and where shapes do. See `is_rounded`."""
    flat = (torch.view_as_real(x) if x.is_complex() else x).detach().reshape(-1)
    flat = flat[:: len(flat) // _FEW + 1].to(device="cpu", dtype=torch.float64)
    weights = 1.0 + 0.5 * torch.arange(1.0, len(flat) + 1.0).double().cos()
    made = float(flat.nan_to_num(0.0, 0.0, 0.0).dot(weights))
    return made + zlib.crc32(repr(tuple(x.shape)).encode()) / 2.0**32


def is_rounded(one: float, other: float) -> bool:
    """Whether two such numbers are alike."""
    return abs(one - other) <= 1e-6 * max(abs(one), abs(other), 1e-30)


def is_lent(x: torch.Tensor) -> bool:
    """Whether others than torch may write into its memory, unseen: NumPy, which gave it or was
    shown it."""
    try:
        return x.device.type == "cpu" and not x.untyped_storage().resizable()
    except (RuntimeError, NotImplementedError):
        return False


def targets_of(batch: Any) -> np.ndarray[Any, Any]:
    """Return what the loss of a batch is taken against: its last tensor."""
    last = [x for x in tree_leaves(batch) if isinstance(x, torch.Tensor)][-1].detach().cpu()
    return (last.float() if last.is_floating_point() else last).numpy()


@final
class ComparedIterator:
    """An iterator that compares after its first batch and at its end, where weights settle."""

    def __init__(
        self, batches: Iterator[Any], communicator: Communicator, resyncs: Resyncs
    ) -> None:
        self._resyncs = resyncs
        self._batches = batches
        self._communicator = communicator
        self._seen = Targets()
        self._any = False

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._seen.compare(self._communicator, "an epoch's batches")
            self._resyncs.settle()
            raise
        self._seen.add(self._communicator.rank, targets_of(batch))
        if not self._any:
            self._any = True
            self._seen.compare(self._communicator, "the first batch")
        return batch
