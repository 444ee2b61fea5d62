"""A rank's piece of a tensor that is cut along one dim, in place of the whole.

It answers for the whole: its shape is the whole's, and what is computed with it is what would be of
the whole. Operations of which it is known that each rank goes on with its own piece run on ordinary
tensors, at their speed; for any other it becomes a DTensor, which knows the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, final

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.utils._pytree import tree_map

from dream._errors import Unsupported


@final
class Piece:
    """local: what this rank has. axis: the dim that is cut, into equal parts; mesh: over whom."""

    __slots__ = ("axis", "local", "mesh")

    def __init__(self, local: torch.Tensor, axis: int, mesh: DeviceMesh) -> None:
        self.local, self.axis, self.mesh = local, axis, mesh

    @property
    def parts(self) -> int:
        return self.mesh.size()

    @property
    def shape(self) -> torch.Size:
        sizes = [*self.local.shape]
        sizes[self.axis] *= self.parts
        return torch.Size(sizes)

    def with_local(self, local: torch.Tensor, axis: int | None = None) -> Piece:
        return Piece(local, self.axis if axis is None else axis, self.mesh)

    def own(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's part of a whole tensor."""
        return tensor.chunk(self.parts, dim=dim)[self.mesh.get_local_rank()]

    def known(self) -> DTensor:
        """As a tensor that knows how it is cut."""
        return DTensor.from_local(self.local, self.mesh, [Shard(self.axis)], run_check=False)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self.local.dim()

    def __getattr__(self, name: str) -> Any:
        """Methods and attributes of tensors."""
        if name in _AS_LOCAL:
            return getattr(self.local, name)
        found = getattr(torch.Tensor, name)
        return partial(computed, found, self) if callable(found) else getattr(self.known(), name)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return computed(func, *args, **(kwargs or {}))

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(computed(torch.Tensor.unbind, self))

    def __bool__(self) -> bool:
        return bool(self.known())


_OF_ITSELF = {"register_hook", "retain_grad", "__setitem__"}
_AS_LOCAL = {"ndim", "dtype", "device", "requires_grad", "is_cuda"}


def computed(func: Any, *args: Any, **kwargs: Any) -> Any:
    """What a function of tensors gives, some of which are pieces."""
    result = by_rule(func, args, kwargs)
    return result if result is not NotImplemented else func(*all_known(args), **all_known(kwargs))


def by_rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same where there is a rule for it, else `NotImplemented`. Raises for what would change a
    DTensor made of a piece, and not the piece."""
    from dream.adapters.pytorch.parallel.split.piece_rules import RULES  # which needs pieces

    rule = RULES.get(func)
    fits = rule is not None and (args or "query" in kwargs)  # attention's are often named
    result = rule(func, *args, **kwargs) if rule is not None and fits else NotImplemented
    name = getattr(func, "__name__", "")
    if result is NotImplemented and (name in _OF_ITSELF or _in_place(name)):
        raise Unsupported(
            "A tensor of which each rank has a piece cannot be changed in place by this. Received: "
            f"{name} in a layer that split='tensor' cuts. Compute a new tensor instead, or say "
            "'replicate' for the layer in plan=."
        )
    return result


def _in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def all_known(value: Any) -> Any:
    return tree_map(lambda x: x.known() if isinstance(x, Piece) else x, value)


def as_piece(value: Any) -> Any:
    """A tensor that is cut along one dim, as this rank's piece; anything else as it is."""
    if not isinstance(value, DTensor) or value.device_mesh.ndim != 1:
        return value
    (placement,) = value.placements
    if not isinstance(placement, Shard) or value.shape[placement.dim] % value.device_mesh.size():
        return value
    return Piece(own(value.to_local()), placement.dim % value.dim(), value.device_mesh)


def own(local: torch.Tensor) -> torch.Tensor:
    """What a layer computed, in the same memory, as a tensor that may be changed in place: what a
    DTensor gives is a view, which may not."""
    made: torch.Tensor = torch.ops.aten._unsafe_view(local, local.shape)
    return made


def _operator(name: str) -> Any:
    found = getattr(torch.Tensor, name)
    return lambda self, *args: computed(found, self, *args)


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "neg",
              "matmul", "rmatmul", "getitem", "setitem", "eq", "ne", "lt", "le", "gt",
              "ge"):  # fmt: skip
    setattr(Piece, f"__{_name}__", _operator(f"__{_name}__"))
Piece.__hash__ = object.__hash__  # type: ignore[method-assign]
