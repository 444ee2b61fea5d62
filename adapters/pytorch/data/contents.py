"""What is in a tensor, as a number."""

from __future__ import annotations

import zlib

import torch

_MOST = 1 << 18
"""Elements that are looked at."""


def contents_of(x: torch.Tensor) -> int:
    """Return a number that differs where its bytes do, or, of a large tensor, where some of them
    that lie evenly in it do; and where shapes do."""
    flat = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    flat = flat.detach().resolve_neg().reshape(-1)
    flat = flat[:: len(flat) // _MOST + 1].to("cpu").clone()  # NumPy marks memory that it is shown
    given = flat.contiguous().view(torch.uint8).numpy().data
    return zlib.crc32(given, zlib.crc32(repr(tuple(x.shape)).encode()))


def is_lent(x: torch.Tensor) -> bool:
    """Whether others than torch may write into its memory, unseen: NumPy, which gave it or was
    shown it."""
    try:
        return x.device.type == "cpu" and not x.untyped_storage().resizable()
    except (RuntimeError, NotImplementedError):
        return False
