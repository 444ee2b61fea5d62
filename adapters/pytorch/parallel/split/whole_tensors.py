"""Forward passes in which some tensors are cut: every operation means what it means on the whole.

DTensor knows how to compute with pieces, but refuses to mix them with ordinary tensors, and does
not know attention on a CPU, nor which random numbers one device would draw.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from dream.adapters.pytorch.parallel.split.pieces import Piece, all_known, as_piece, by_rule, own

_CUT = (DTensor, Piece)


def _holds(kind: Any, values: Iterable[Any]) -> bool:
    return any(
        isinstance(value, kind) or (isinstance(value, (tuple, list)) and _holds(kind, value))
        for value in values
    )


@final
class WholeTensors(TorchFunctionMode):
    """While it is on, ordinary tensors beside cut ones count as whole ones, alike on every rank."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self._mesh = mesh

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not (_holds(_CUT, args) or _holds(_CUT, kwargs.values())):
            return func(*args, **kwargs)
        if _holds(Piece, args) or _holds(Piece, kwargs.values()):
            result = by_rule(func, args, kwargs)
            if result is not NotImplemented:
                return result
            args, kwargs = all_known(args), all_known(kwargs)
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if func is F.dropout:
            return self._dropout(*args, **kwargs)
        args, kwargs = tree_map(self._lifted, (args, kwargs))
        return func(*args, **kwargs)

    def _lifted(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, DTensor):
            return value
        return DTensor.from_local(value, self._mesh, [Replicate()], run_check=False)

    def _dropout(
        self, x: DTensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        """The mask that one device would draw, of which each rank takes its piece."""
        if not training or p == 0.0:
            return x
        mask = F.dropout(torch.ones(x.shape, dtype=x.dtype, device=x.device), p)
        return x * distribute_tensor(mask, self._mesh, x.placements, src_data_rank=None)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    **options: Any,
) -> torch.Tensor:
    """Each rank attends with its own heads, or its own samples."""
    given = (query, key, value)
    cut = query.placements if isinstance(query, DTensor) else ()
    alike = all(isinstance(x, DTensor) and x.placements == cut for x in given)
    axis = cut[0] if len(cut) == 1 else None
    if not alike or not isinstance(axis, Shard) or axis.dim >= query.dim() - 2 or dropout_p:
        raise NotImplementedError(
            f"attention on pieces cut as {[getattr(x, 'placements', 'whole') for x in given]}, "
            f"dropout_p={dropout_p}"
        )
    assert isinstance(query, DTensor)
    if attn_mask is not None:
        attn_mask = _piece_of_mask(attn_mask, query, axis)
    q, k, v = (x.to_local() for x in given if isinstance(x, DTensor))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, **options)
    return DTensor.from_local(out, query.device_mesh, cut, run_check=False)


def _piece_of_mask(mask: torch.Tensor, query: DTensor, axis: Shard) -> torch.Tensor:
    """What a rank's own heads look at; a mask that is the same for all heads is whole."""
    whole = mask.full_tensor() if isinstance(mask, DTensor) else mask
    from_end = axis.dim - query.dim()
    if whole.dim() < -from_end or whole.shape[from_end] == 1:
        return whole
    mesh = query.device_mesh
    return whole.chunk(mesh.size(), dim=from_end)[mesh.get_local_rank()]


def turn_on(module: nn.Module, mesh: DeviceMesh) -> None:
    """Have the module's forward passes run in the mode. Its outputs are whole, ordinary tensors."""
    mode = WholeTensors(mesh)
    module.register_forward_pre_hook(lambda *_: _enter(mode))
    module.register_forward_hook(lambda *_: _leave(mode), always_call=True)
    module.register_forward_hook(lambda _, __, output: tree_map(whole, output))


@contextmanager
def mode_off_in(layer: nn.Module) -> Iterator[None]:
    """Have the mode be off inside a cut layer, which knows what to do, and reads many attributes
    of tensors on the way; and in the hooks that the layer is given inside here."""
    off: list[Any] = []

    def begin(*_: Any) -> None:
        off.append(torch._C.DisableTorchFunction())
        off[-1].__enter__()

    def end(*_: Any) -> None:
        off.pop().__exit__(None, None, None)

    layer.register_forward_pre_hook(begin)
    yield
    layer.register_forward_hook(end, always_call=True)


def give_pieces(layer: nn.Module) -> None:
    """Have a column-cut layer give each rank's piece, where the mode is on."""
    layer.register_forward_hook(lambda _, __, output: as_piece(output))


def give_own(layer: nn.Module) -> None:
    """Have a column-cut layer give each rank its columns as an ordinary tensor of its own."""
    layer.register_forward_hook(lambda _, __, output: own(output))


def take_pieces(layer: nn.Module) -> None:
    """Have a row-cut layer take them. Before it is cut, so that this comes first."""
    layer.register_forward_pre_hook(lambda _, args: all_known(args))


def whole(value: Any) -> Any:
    """A cut tensor put together, in a way that gradients pass."""
    value = value.known() if isinstance(value, Piece) else value
    if not isinstance(value, DTensor):
        return value
    return value.redistribute(placements=[Replicate()] * value.device_mesh.ndim).to_local()


def _enter(mode: WholeTensors) -> None:
    mode.__enter__()  # type: ignore[no-untyped-call]


def _leave(mode: WholeTensors) -> None:
    mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
