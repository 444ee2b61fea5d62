"""Torch's tensors: for the communicator, as bytes, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import prod
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.autograd.function import once_differentiable

from dream import _plain
from dream._errors import Unsupported
from dream._plain import Codec
from dream.adapters.pytorch.loss.calls import TrainingCall
from dream.collectives import Tensor, Tensors
from dream.collectives.tensors import check_moves
from dream.collectives.transport import Combine, Length

_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
        "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
    )
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_COMBINE: dict[Combine, Callable[..., torch.Tensor]] = {
    "sum": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
    "product": torch.mul,
}


@final
class TorchTensors(Tensors):
    """Torch's tensors, each on its own device."""

    def take(self, x: Tensor) -> torch.Tensor:
        if isinstance(x, torch.Tensor):
            return x.detach() if x.requires_grad else x
        if isinstance(x, (np.ndarray, np.generic)) or hasattr(x, "__array__"):
            return _of_numpy(np.asarray(x))
        raise Unsupported(
            "A communicator takes tensors and NumPy arrays. Received: "
            f"{type(x).__name__}. Convert it first, or use the object collectives."
        )

    def give(self, result: torch.Tensor, like: Tensor, out: Tensor | None) -> Any:
        if out is not None:
            return _written(result, out)
        if isinstance(like, torch.Tensor):
            return result
        array = _numpy(result, like)
        return array[()] if isinstance(like, np.generic) else array

    def gathered(
        self,
        x: Tensor,
        rank: int,
        gather: Callable[[Tensor], Tensor],
        add: Callable[[Tensor], Tensor],
    ) -> torch.Tensor | None:
        if not (isinstance(x, torch.Tensor) and x.requires_grad and torch.is_grad_enabled()):
            return None
        own = torch.atleast_1d(x)
        counts = gather(torch.tensor([len(own)])).tolist()
        apply: Callable[..., torch.Tensor] = _Gather.apply
        whole = apply(own, gather, add, sum(counts[:rank]))
        TrainingCall(None, None, (x.grad_fn,)).mark(whole)
        return whole

    def key(self, x: torch.Tensor) -> Hashable:
        return x.dtype, x.shape

    def dtype(self, x: torch.Tensor) -> str:
        return _NAMES.get(x.dtype, str(x.dtype))

    def shape(self, x: torch.Tensor) -> tuple[int | None, ...]:
        return tuple(x.shape)

    def sizes(self, x: torch.Tensor) -> list[Length]:
        return list(x.shape)

    def flat(self, x: torch.Tensor, dtype: str, *, own: bool = False) -> torch.Tensor:
        if x.dtype is _DTYPES[dtype] and x.is_contiguous():  # the way that must be short
            if not own or x.is_neg():
                x = x.clone()
            return x if x.dim() == 1 else x.view(-1)
        if x.is_complex():
            x = torch.view_as_real(x.resolve_conj())
        return x.to(_DTYPES[dtype], copy=True, memory_format=torch.contiguous_format).view(-1)

    def size(self, x: torch.Tensor) -> int:
        return x.numel() * (2 if x.is_complex() else 1)

    def shaped(self, flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        if like.is_complex():
            return torch.view_as_complex(flat.view(*like.shape, 2))
        if flat.shape != like.shape:
            flat = flat.view(like.shape)
        return flat if flat.dtype is like.dtype else flat.to(like.dtype)

    def words(self, x: torch.Tensor) -> torch.Tensor:
        data = _bytes(x)
        words = data.new_zeros((len(data) + 3) // 4 * 4)
        words[: len(data)] = data
        return words.view(torch.int32)

    def unworded(self, words: torch.Tensor, dtype: str, shape: Sequence[Length]) -> torch.Tensor:
        wanted = _DTYPES[dtype]
        return (
            words.view(torch.uint8)[: prod(shape) * wanted.itemsize].view(wanted).view(tuple(shape))
        )

    def row(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(1)

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return parts[0] if len(parts) == 1 else torch.cat(list(parts))

    def cut(self, x: torch.Tensor, lengths: Sequence[Length]) -> list[torch.Tensor]:
        return list(x.split(list(lengths)))

    def combine(self, flats: Sequence[torch.Tensor], op: Combine) -> torch.Tensor:
        result = flats[0].clone()
        for flat in flats[1:]:
            _COMBINE[op](result, flat, out=result)
        return result

    def over(self, flat: torch.Tensor, count: int) -> torch.Tensor:
        return flat.div_(count)

    def numbers(self, values: Sequence[Length]) -> torch.Tensor:
        return torch.tensor(list(values), dtype=torch.int64).view(torch.int32)

    def integers(self, words: torch.Tensor, count: int) -> list[Length]:
        return words.view(torch.int64)[:count].tolist()

    def to_bytes(self, x: torch.Tensor) -> memoryview:
        return _bytes(x.cpu()).numpy().data

    def from_bytes(self, data: bytearray, dtype: str, shape: Sequence[int]) -> torch.Tensor:
        if not data:
            return torch.empty(tuple(shape), dtype=_DTYPES[dtype])
        return torch.frombuffer(data, dtype=_DTYPES[dtype]).view(tuple(shape))

    def in_graph(self) -> bool:
        return False

    def after(
        self, act: Callable[[list[list[int]]], object], xs: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        act([list(x.shape) for x in xs])
        return xs


def _bytes(x: torch.Tensor) -> torch.Tensor:
    """Flat. A tensor of one element or none counts as contiguous whatever its strides, but cannot
    be viewed in another dtype with them."""
    flat = x.contiguous().view(-1)
    if flat.stride(0) != 1:
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def _of_numpy(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """The same memory, where it is contiguous and not read-only."""
    name = array.dtype.name
    if name not in _DTYPES:
        check_moves(name)
    if name == "bfloat16":  # known to NumPy by another package, and not to torch.from_numpy
        return _of_numpy(array.view(np.int16)).view(torch.bfloat16)
    array = np.require(array, requirements=["C", "W"])
    return torch.from_numpy(array)


def _written(result: torch.Tensor, out: Tensor) -> Any:
    if isinstance(out, torch.Tensor):
        if result.data_ptr() != out.data_ptr():  # else it was added up there
            out.detach().copy_(result.view(out.shape))
    else:
        np.copyto(out, _numpy(result, out).reshape(out.shape), casting="no")
    return out


def _numpy(x: torch.Tensor, like: Any) -> np.ndarray[Any, Any]:
    if x.dtype is torch.bfloat16:
        array: np.ndarray[Any, Any] = x.cpu().view(torch.int16).numpy().view(like.dtype)
        return array
    return x.cpu().numpy()


_ALL_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}


def dump(value: object) -> bytes:
    """`Unpackable` for what cannot travel."""
    return _plain.pack(value, CODEC)


def load(data: bytes) -> Any:
    """`Garbled` for what no `dump` gave. Tensors are on the CPU, and their own."""
    return _plain.unpack(data, CODEC)


def _coded(value: object) -> tuple[str, object] | None:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    name = str(value.dtype).removeprefix("torch.")
    if name not in _ALL_DTYPES or value.is_quantized or value.is_meta:
        return None
    flat = value.detach().cpu().contiguous().reshape(-1)
    return "tensor", (name, tuple(value.shape), flat.view(torch.uint8).numpy())


def _decoded(tag: str, value: Any) -> object:
    name, shape, data = value
    dtype = _ALL_DTYPES[name]
    if tag != "tensor" or not isinstance(data, np.ndarray) or data.dtype != np.uint8:
        raise ValueError("no tensor")
    if min(shape, default=0) < 0 or prod(shape) * dtype.itemsize != data.nbytes:
        raise ValueError("a tensor of another size")
    if not data.nbytes:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(data).view(dtype).reshape(shape)


CODEC = Codec(_coded, _decoded)


def whole_state(model: nn.Module) -> dict[str, NDArray[Any]]:
    """Every tensor of the model's state by name, where each rank holds all of it."""
    return {name: array_of(value) for name, value in model.state_dict().items()}


def array_of(tensor: torch.Tensor) -> NDArray[Any]:
    """A copy that NumPy can hold: bfloat16 becomes float32."""
    value = tensor.detach().cpu()
    if value.dtype is torch.bfloat16:
        value = value.float()
    if value.data_ptr() == tensor.data_ptr():
        value = value.clone(memory_format=torch.contiguous_format)
    array: NDArray[Any] = value.numpy()
    return array


def dtype_name(dtype: torch.dtype) -> str:
    """Return `float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


class _Gather(torch.autograd.Function):
    """All ranks' rows."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        gather: Callable[[torch.Tensor], torch.Tensor],
        add: Callable[[torch.Tensor], torch.Tensor],
        start: int,
    ) -> torch.Tensor:
        ctx.add, ctx.own = add, slice(start, start + len(x))
        return gather(x.detach())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return ctx.add(gradient.contiguous())[ctx.own], None, None, None
