"""The communicator on torch.distributed: gloo for CPU tensors, NCCL for CUDA tensors."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, final

import numpy as np
import torch
from torch import distributed

from dream._adapter import Op, Plan, Tensor
from dream._errors import ConfigurationError, Unsupported
from dream._topology import Cluster
from dream.adapters.pytorch.errors import peers_may_fail
from dream.adapters.pytorch.hooks import GradientHook, TorchReduction

_OPS: dict[Op, Any] = {
    "sum": distributed.ReduceOp.SUM,
    "mean": distributed.ReduceOp.SUM,
    "min": distributed.ReduceOp.MIN,
    "max": distributed.ReduceOp.MAX,
}
_START = timedelta(seconds=120)
_LATE = timedelta(minutes=30)


def connect(plan: Plan) -> TorchReduction:
    """The communicator of the job's process group, which is started on first use."""
    start_group(plan.cluster, plan.reduction)
    return TorchCommunicator()


def start_group(cluster: Cluster, reduction: str) -> None:
    """Make torch's default process group, or take the one that the user's script has made."""
    if distributed.is_initialized():
        if distributed.get_world_size() != cluster.world_size:
            raise ConfigurationError(
                "The process group that is up is of another size. Received: "
                f"{distributed.get_world_size()} ranks in torch.distributed, "
                f"{cluster.world_size} from {cluster.source}. Leave init_process_group to dream."
            )
        return
    if reduction == "nccl" and not distributed.is_nccl_available():
        raise Unsupported(
            "This torch has no NCCL. Received: reduction='nccl'. Use reduction='gloo'."
        )
    assert cluster.master is not None
    with peers_may_fail(f"the start at {cluster.master}"):
        distributed.init_process_group(
            _backend(reduction),
            init_method=f"tcp://{cluster.master}",
            rank=cluster.rank,
            world_size=cluster.world_size,
            timeout=_LATE,
        )
    atexit.register(_stop_group)


def _backend(reduction: str) -> str:
    """gloo always, since control messages are CPU tensors; NCCL beside it for CUDA tensors."""
    cuda = torch.cuda.is_available() and distributed.is_nccl_available() and reduction != "gloo"
    return "cpu:gloo,cuda:nccl" if cuda else "gloo"


def _stop_group() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()


@final
class TorchCommunicator(TorchReduction):
    """Collectives of the default process group."""

    @property
    def gradient_hook(self) -> GradientHook | None:
        return None

    @property
    def rank(self) -> int:
        return distributed.get_rank()

    @property
    def world_size(self) -> int:
        return distributed.get_world_size()

    def all_reduce(self, x: Tensor | Sequence[Tensor], op: Op = "mean") -> Any:
        if op not in _OPS:
            raise ConfigurationError(f"Unknown op. Received: {op!r}. Known: {', '.join(_OPS)}.")
        return on_tensors(x, lambda flat: self._reduce(flat, op))

    def _reduce(self, flat: torch.Tensor, op: Op) -> torch.Tensor:
        if op == "mean" and not (flat.is_floating_point() or flat.is_complex()):
            raise Unsupported(
                f"A mean of whole numbers is not one. Received: dtype {flat.dtype}. Use op='sum', "
                "or a floating point dtype."
            )
        with peers_may_fail("all_reduce"):
            distributed.all_reduce(flat, op=_OPS[op])
        return flat.div_(self.world_size) if op == "mean" else flat

    def broadcast(self, x: Tensor | Sequence[Tensor], root: int = 0) -> Any:
        def send(flat: torch.Tensor) -> torch.Tensor:
            with peers_may_fail("broadcast"):
                distributed.broadcast(flat, src=root)
            return flat

        return on_tensors(x, send)

    def barrier(self) -> None:
        with peers_may_fail("barrier"):
            distributed.barrier()

    def all_gather_object(self, value: object) -> list[Any]:
        values: list[Any] = [None] * self.world_size
        with peers_may_fail("all_gather_object"):
            distributed.all_gather_object(values, value)
        return values

    def broadcast_object(self, value: object, root: int = 0) -> Any:
        values = [value]
        with peers_may_fail("broadcast_object"):
            distributed.broadcast_object_list(values, src=root)
        return values[0]

    def close(self) -> None:
        _stop_group()


def on_tensors(x: Tensor | Sequence[Tensor], act: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`act` on a flat copy of `x`; a list travels as one flat tensor a dtype and device."""
    if not isinstance(x, (list, tuple)):
        return _back(act(_flat([x])), x)
    results: list[Any] = [None] * len(x)
    kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for index, tensor in enumerate(x):
        native = _native(tensor)
        kinds.setdefault((native.dtype, native.device), []).append(index)
    for indices in kinds.values():
        flat = act(_flat([x[index] for index in indices]))
        parts = flat.split([_native(x[index]).numel() for index in indices])
        for index, part in zip(indices, parts, strict=True):
            results[index] = _back(part, x[index])
    return results


def _native(x: Tensor) -> torch.Tensor:
    if isinstance(x, torch.Tensor):
        return x.detach()
    return (
        torch.from_numpy(np.ascontiguousarray(x))
        if isinstance(x, np.ndarray)
        else (torch.as_tensor(x))
    )


def _flat(tensors: Sequence[Tensor]) -> torch.Tensor:
    """A new flat tensor, so that no input changes in place."""
    return torch.cat([_native(tensor).reshape(-1) for tensor in tensors])


def _back(flat: torch.Tensor, like: Tensor) -> Any:
    if isinstance(like, torch.Tensor):
        return flat.view(like.shape)
    array = flat.numpy().reshape(np.shape(like))
    return array if isinstance(like, np.ndarray) else array[()]
