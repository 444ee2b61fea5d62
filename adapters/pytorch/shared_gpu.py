"""The process group of ranks that compute on one GPU: their tensors go through the CPU's memory.

NCCL refuses two ranks on a GPU, and gloo has some collectives for CUDA tensors, crashes in others
and has no messages for them. So each collective copies what it takes to the CPU, has gloo do it
there, and copies back what it wrote, which torch's callers hold as its first argument.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, final

import torch
from torch import distributed
from torch.distributed import ProcessGroup

from dream._errors import Unsupported
from dream.adapters.pytorch.private import (
    Work,
    done,
    gloo_group,
    name_of_group,
    tree_leaves,
    tree_map,
)

NAME = "one_gpu"
"""torch's name for it."""
_COLLECTIVES = (
    "allreduce", "allreduce_coalesced", "allgather", "_allgather_base", "allgather_coalesced",
    "allgather_into_tensor_coalesced", "all_gather_single", "all_gather_single_coalesced",
    "reduce", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single", "reduce_scatter_single_coalesced", "alltoall", "alltoall_base",
    "all_to_all_single", "broadcast", "gather", "scatter",
)  # fmt: skip


class _OneGpu(ProcessGroup):
    """A process group of ranks on one GPU. Its methods beside these are those of `_COLLECTIVES`,
    each by `_through`."""

    def __init__(self, inner: ProcessGroup, rank: int, size: int) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # its other form, as it is in C++
        self.inner = inner

    def getBackendName(self) -> str:  # noqa: N802  # torch's name
        return NAME

    @property
    def group_name(self) -> str:  # type: ignore[override]
        return name_of_group(self)

    def barrier(self, *args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        return self.inner.allreduce([torch.zeros(1)])

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Any:
        return self.inner.send(_on_cpu(tensors), to, tag)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        held = _on_cpu(tensors)
        return _Received(self.inner.recv(held, source, tag), held, tensors)


@final
class _Received(Work):
    """What is received is copied when it is waited for: the rank may have to send before."""

    def __init__(self, work: Any, held: list[torch.Tensor], to: list[torch.Tensor]) -> None:
        super().__init__()
        self._work, self._held, self._to = work, held, to

    def wait(self, *args: Any) -> bool:
        done = bool(self._work.wait(*args))
        _back(self._held, self._to)
        return done


def _through(name: str) -> Callable[..., Any]:
    def method(self: _OneGpu, written: Any, *args: Any, **kwargs: Any) -> Any:
        own = getattr(self.inner, name)
        if not any(_is_cuda(each) for each in tree_leaves((written, args))):
            return own(written, *args, **kwargs)
        held = _on_cpu(written)
        own(held, *_on_cpu(args), **kwargs).wait()
        _back(held, written)
        return done(tree_leaves(written))

    return method


for _name in _COLLECTIVES:
    if hasattr(ProcessGroup, _name):
        setattr(_OneGpu, _name, _through(_name))


def _is_cuda(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda


def _on_cpu(values: Any) -> Any:
    """Copies, which wait for what the GPU has yet to compute."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise Unsupported(
            "A CUDA graph holds no collective of ranks that share a GPU, which goes through the "
            "CPU. Received: a collective while a graph is captured. Give each rank a GPU of its "
            "own, or train without the graph."
        )
    return tree_map(lambda x: x.cpu() if _is_cuda(x) else x, values)


def _back(held: Any, written: Any) -> None:
    with torch.no_grad():
        for own, target in zip(tree_leaves(held), tree_leaves(written), strict=True):
            if own is not target:
                target.copy_(own)


def _made(store: Any, rank: int, size: int, timeout: timedelta) -> _OneGpu:
    return _OneGpu(gloo_group(store, rank, size, timeout), rank, size)


distributed.Backend.register_backend(NAME, _made, devices=["cpu", "cuda"])
