"""Values with tensors in them, as bytes and back. Nothing but values comes of reading them."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch

from dream import _plain
from dream._plain import Codec

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}


def dump(value: object) -> bytes:
    """`Unpackable` for what cannot travel."""
    return _plain.pack(value, TENSORS)


def load(data: bytes) -> Any:
    """`Garbled` for what no `dump` gave. Tensors are on the CPU, and their own."""
    return _plain.unpack(data, TENSORS)


def _coded(value: object) -> tuple[str, object] | None:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    name = str(value.dtype).removeprefix("torch.")
    if name not in _DTYPES or value.is_quantized or value.is_meta:
        return None
    flat = value.detach().cpu().contiguous().reshape(-1)
    return "tensor", (name, tuple(value.shape), flat.view(torch.uint8).numpy())


def _decoded(tag: str, value: Any) -> object:
    name, shape, data = value
    dtype = _DTYPES[name]
    if tag != "tensor" or not isinstance(data, np.ndarray) or data.dtype != np.uint8:
        raise ValueError("no tensor")
    if min(shape, default=0) < 0 or prod(shape) * dtype.itemsize != data.nbytes:
        raise ValueError("a tensor of another size")
    if not data.nbytes:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(data).view(dtype).reshape(shape)


TENSORS = Codec(_coded, _decoded)
