"""What samples hold, as a number: so that ranks can tell when they read different ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dream.data.position import chained

_GLANCE = 1024
"""Elements of each array that are looked at."""


def digest_of(value: Any, digest: int = 0) -> int:
    """Of tensors, arrays, numbers and text, nested; of anything else, its type."""
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
