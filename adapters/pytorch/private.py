"""Everything of torch's that dream uses and torch does not promise to keep, a name each.

tests/adapters/pytorch/test_private.py says in which release each was seen, and fails when one goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import GradBucket as GradBucket
from torch._ops import OpOverload as OpOverload
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map

BatchNorm = _BatchNorm
"""Every class that normalises by a batch."""
NormBase = _NormBase
"""Every class that keeps running statistics."""
CALL = "_compiled_call_impl"
"""The attribute of a module that takes its calls; `Module.compile` sets it too."""

current_backward: Callable[[], int] = torch._C._current_graph_task_id
"""A number for the backward pass that runs in this thread; -1 where none does."""
foreach_mul_ = torch._foreach_mul_
foreach_copy_ = torch._foreach_copy_


def recomputing() -> bool:
    """Whether this is a call that a backward pass repeats."""
    return current_backward() != -1


def after_backward(act: Callable[[], None]) -> None:
    """Have the backward pass that runs end with this."""
    torch.autograd.Variable._execution_engine.queue_callback(act)


def version_of(tensor: torch.Tensor) -> int:
    """Count the changes of a tensor in place."""
    version: int = tensor._version
    return version


def to_local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the rank's shard of a DTensor, as it lies in memory; any other tensor itself. Asked of
    the tensor, since DTensors are slow to import for those who have none."""
    shard: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return shard


def own_call(module: nn.Module) -> Callable[..., Any]:
    """A module's call, hooks and all, past what takes its calls."""
    call: Callable[..., Any] = module._call_impl
    return call


def has_hooks(module: nn.Module) -> bool:
    """Whether a call of the module runs more than its forward."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def bare_copy(module: nn.Module) -> nn.Module:
    """A module without tensors, as DataParallel makes its replicas; recurrent layers keep their
    lists of weights by it."""
    copy: nn.Module = module._replicate_for_data_parallel()
    return copy


def tables(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return (children, parameters, buffers) as the module itself keeps them."""
    return module._modules, module._parameters, module._buffers


def check_input_dim(norm: Any, x: torch.Tensor) -> None:
    """A BatchNorm's own look at its input's shape."""
    norm._check_input_dim(x)


def ignore_parameters(module: nn.Module, names: Iterable[str]) -> None:
    """Have DDP leave these parameters alone."""
    module._ddp_params_and_buffers_to_ignore = [*names]  # type: ignore[assignment]


def remove_hooks(ddp: nn.parallel.DistributedDataParallel) -> None:
    """Have a DDP reduce nothing any more."""
    ddp._remove_autograd_hooks()


def rebuild_buckets(reducer: Any) -> None:
    """Put DDP's buckets in the order in which gradients came."""
    reducer._rebuild_buckets()


def written_arguments(op: OpOverload) -> list[tuple[str, bool]]:
    """Each argument of an operation by name, and whether it is written into."""
    declared = op._schema.arguments
    return [(a.name, a.alias_info is not None and a.alias_info.is_write) for a in declared]


def is_in_place(op: OpOverload) -> bool:
    """Whether an operation returns what it was given."""
    return any(result.alias_info is not None for result in op._schema.returns)
