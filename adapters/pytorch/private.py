"""Everything of torch's that dream uses and torch does not promise to keep, a name each; of FSDP2
that is in parallel/fsdp/private.py.

tests/adapters/pytorch/test_private.py says in which release each was seen, and fails when one goes.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import distributed, nn
from torch._C._distributed_c10d import GradBucket as GradBucket
from torch._C._distributed_c10d import Work as Work
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch._ops import OpOverload as OpOverload
from torch.autograd.graph import Node
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.optim import Optimizer
from torch.overrides import _get_current_function_mode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import SUPPORTED_NODES, is_namedtuple_instance
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map
from torch.utils.data._utils import worker
from torch.utils.data.dataloader import _BaseDataLoaderIter

LoaderIterator = _BaseDataLoaderIter
"""What every DataLoader iterates by."""
BatchNorm = _BatchNorm
NormBase = _NormBase
"""Every class that normalises by a batch; and every one that keeps running statistics."""
VF, BY_REJECTION = torch._VF, ("_standard_gamma", "_sample_dirichlet")
"""Where torch's own layers and functions look their kernels up; and what its distributions draw by,
as many numbers as the values say."""
CALL = "_compiled_call_impl"
"""The attribute of a module that takes its calls; `Module.compile` sets it too."""
FUNCTION = "_forward_cls"
"""The attribute of a node by which the `autograd.Function` is known that made it."""
NODE_HOOK = "_register_hook"
"""By which `autograd.Function` has any node of a graph take a hook, given its table of them."""
innermost_mode: Callable[[], Any] = _get_current_function_mode
"""The function mode that sees calls first; None where there is none."""
functions_unseen: Callable[[], Any] = torch._C.DisableTorchFunction
"""Makes a context in which no function mode sees what is called. The public one keeps modes on."""
current_node: Callable[[], Any] = torch._C._current_autograd_node
current_backward: Callable[[], int] = torch._C._current_graph_task_id
"""A number for the backward pass that runs in this thread; -1 where none does."""
foreach_mul_ = torch._foreach_mul_
foreach_copy_ = torch._foreach_copy_
swap_storages: Callable[[torch.UntypedStorage, torch.UntypedStorage], None] | None = getattr(
    torch.UntypedStorage, "_swap_data_ptr_", None
)
"""Has two storages of as many bytes take each other's memory, all views of them with it; None where
torch has no such thing."""
LBFGS_GATHERS, LBFGS_ADDS = "_gather_flat_grad", "_add_grad"
"""Where an L-BFGS reads its gradients as one vector, and adds one to its parameters."""
device_constructors = _device_constructors  # which torch fills once, when it is first called


def recomputing() -> bool:
    """Whether this is a call that a backward pass repeats."""
    return current_backward() != -1


def after_backward(act: Callable[[], None]) -> None:
    """Have the backward pass that runs end with this."""
    torch.autograd.Variable._execution_engine.queue_callback(act)


def version_of(tensor: torch.Tensor) -> int:
    """Count the changes of a tensor in place."""
    return int(tensor._version)


def to_local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the rank's shard of a DTensor, as it lies in memory; any other tensor itself. Asked of
    the tensor, since DTensors are slow to import for those who have none."""
    shard: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return shard


def to_whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a DTensor's whole, which all its ranks make together; any other tensor itself."""
    whole: Any = tensor
    return tensor if to_local(tensor) is tensor else whole.full_tensor()


DTENSOR_HANDLERS = "_custom_op_handlers"
"""A dict in which a DTensor's `dispatcher_of` looks up who takes an operation."""


def dispatcher_of(kind: Any) -> Any:
    """Return what takes the operations of DTensors, of their class."""
    return kind._op_dispatcher


def past_handlers(
    kind: Any, operation: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run an operation of DTensors as torch takes it, whoever took it before."""
    owner, name = dispatcher_of(kind), DTENSOR_HANDLERS
    put = getattr(owner, name)
    setattr(owner, name, {op: handler for op, handler in put.items() if op is not operation})
    try:
        return operation(*args, **kwargs)
    finally:
        setattr(owner, name, put)


def be_whole(tensor: torch.Tensor) -> None:
    """Have a DTensor be what lies in its memory, the same on every rank; nothing for others."""
    spec: Any = getattr(tensor, "_spec", None)
    if spec is not None:
        from torch.distributed.tensor import Replicate

        whole = tuple(Replicate() for _ in spec.placements)
        tensor._spec = type(spec)(spec.mesh, whole, spec.tensor_meta)  # type: ignore[attr-defined]


own_call: Callable[[nn.Module], Callable[..., Any]] = attrgetter("_call_impl")
"""A module's call, hooks and all, past what takes its calls."""


def has_hooks(module: nn.Module) -> bool:
    """Whether a call of the module runs more than its forward."""
    return bool(sees_outputs(module) or module._forward_pre_hooks or gradient_hooks(module))


def sees_outputs(module: nn.Module) -> bool:
    """Whether something is told what a call of the module gives."""
    return bool(module._forward_hooks)


AFTER_GRADIENT = "_post_accumulate_grad_hooks"


def gradient_hooks(item: nn.Module | torch.Tensor) -> dict[str, dict[int, Any]]:
    """A module's, or a tensor's, tables of hooks on gradients, by their attributes."""
    names = ("_backward_hooks", "_backward_pre_hooks", AFTER_GRADIENT)
    return {name: table for name in names if (table := getattr(item, name, None))}


def tables(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return (children, parameters, buffers) as the module itself keeps them."""
    return module._modules, module._parameters, module._buffers


def has_tables(item: nn.Module | Optimizer) -> bool:
    """Whether a module or an optimizer has been initialised. A library's wrapper, whose class is an
    optimizer's, may never be: the one that it wraps has."""
    return not {"_modules", "_optimizer_step_pre_hooks"}.isdisjoint(vars(item))


def wrap_metric_updates(metric: Any) -> tuple[str, Callable[..., Any]]:
    """torchmetrics 1.9: what a metric's class wraps its `update` with as it is made or unpickled,
    and the name of it."""
    return "_wrap_update", metric._wrap_update


def check_input_dim(norm: Any, x: torch.Tensor) -> None:
    """A BatchNorm's own look at its input's shape."""
    norm._check_input_dim(x)


def ignore_parameters(module: nn.Module, names: Iterable[str]) -> None:
    """Have DDP leave these parameters alone."""
    module._ddp_params_and_buffers_to_ignore = [*names]  # type: ignore[assignment]


def remove_hooks(ddp: nn.parallel.DistributedDataParallel) -> None:
    """Have a DDP reduce nothing any more."""
    ddp._remove_autograd_hooks()


def unreduced(reducer: Any) -> list[int]:
    """Return which of DDP's parameters a backward pass that has ended did not come to, by their
    places. It tells them in words alone."""
    try:
        reducer._check_reducer_finalized()
    except RuntimeError as error:
        told = re.search(r"did not receive grad for rank \d+: ((?:\d+ ?)+)", str(error))
        return [] if told is None else [int(place) for place in told.group(1).split()]
    return []


def rebuild_buckets_of(reducer: Any) -> Callable[[], bool]:
    """Return what puts DDP's buckets in the order in which gradients came. The second time, ranks
    wait there for one another: a frame of this file tells of it."""
    rebuild: Callable[[], bool] = reducer._rebuild_buckets

    def rebuild_buckets() -> bool:
        return rebuild()

    return rebuild_buckets


def written_arguments(op: OpOverload) -> list[tuple[str, bool]]:
    """Each argument of an operation by name, and whether it is written into."""
    declared = op._schema.arguments
    return [(a.name, a.alias_info is not None and a.alias_info.is_write) for a in declared]


def is_in_place(op: OpOverload) -> bool:
    """Whether an operation returns what it was given."""
    return any(result.alias_info is not None for result in op._schema.returns)


def transforms() -> list[str]:
    """Name those of torch.func that run now ("Grad", "Vmap", ...), the innermost one last."""
    return [level.key().name for level in torch._C._functorch.get_interpreter_stack() or ()]


def is_batched(x: torch.Tensor) -> bool:
    """Whether it stands for each sample's tensor under torch.func.vmap, and can't be read."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x) and not functorch.is_batchedtensor(x):
        x = functorch.get_unwrapped(x)
    return bool(functorch.is_batchedtensor(x))


def compiles() -> bool:
    """Whether anything was given to torch.compile, be it not called yet."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")  # a second to import
    return dynamo is not None and any(map(callable, dynamo.cached_backends.values()))


def not_compiled_alone(function: Any) -> None:
    """Have torch.compile take a function within what calls it, and never begin with it: with the
    functions of torch's own modules it does the same. Nothing where torch has no such thing."""
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        kinds = frames._FrameAction
        skipped = frames._FrameExecStrategy(kinds.SKIP, kinds.DEFAULT)
        frames.set_code_exec_strategy(function.__code__, skipped)


def default_device_mode() -> Any:
    """Return the function mode of torch.set_default_device, which is always the lowest."""
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


def is_compiled(module: nn.Module) -> bool:
    """Whether this is what torch.compile makes of a module."""
    return type(module).__name__ == "OptimizedModule"


def structure_of(value: object) -> tuple[type[Any], list[Any], Any] | None:
    """Split a container that torch knows, but no named tuple, into (kind, children, context).
    pytree: torch's functions take such containers, and only it knows which are registered."""
    node = SUPPORTED_NODES.get(type(value))
    if node is None:
        return None
    children, context = node.flatten_fn(value)
    return type(value), list(children), context


def structure_kinds() -> Sequence[type[Any]]:
    """Return the kinds of containers that torch knows."""
    return list(SUPPORTED_NODES)


def structure_made(kind: type[Any], children: list[Any], context: Any) -> Any:
    """Put a container together again."""
    return SUPPORTED_NODES[kind].unflatten_fn(children, context)


def is_named_tuple(value: object) -> bool:
    """Tell named tuples from tuples, as torch does."""
    return bool(is_namedtuple_instance(value))


def changeable(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same memory as an ordinary tensor that may be changed in place, without a copy:
    what a DTensor gives is a view, which may not, or still on its way, of a type of its own."""
    made: torch.Tensor = torch.ops.aten._unsafe_view(tensor, tensor.shape)
    return made


def is_parameter(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is a leaf that is trained, or a view of one."""
    base = tensor if tensor._base is None else tensor._base
    return base.requires_grad and base.is_leaf


def is_view(tensor: torch.Tensor) -> bool:
    """Tell whether autograd takes the tensor for a view. No public name tells."""
    return tensor._is_view()


def has_state_dict_hook(module: nn.Module, hook: Callable[..., Any]) -> bool:
    """Tell whether a hook is there already."""
    return hook in module._state_dict_hooks.values()


def own_parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """List a module's own parameters, under every name. Public, and said once."""
    return [*module.named_parameters(recurse=False, remove_duplicate=False)]


def own_buffers(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """List a module's own buffers, under every name. Public, and said once."""
    return [*module.named_buffers(recurse=False, remove_duplicate=False)]


def without_children(module: nn.Module) -> nn.Module:
    """Copy a module that has no memory, alone. No public name deletes what its class reads."""
    made = copy.deepcopy(module)
    made._modules.clear()
    return made


def attention_reset(module: nn.MultiheadAttention) -> None:
    """Draw first values as the constructor does: it has no public `reset_parameters`."""
    module.out_proj.reset_parameters()
    getattr(module, "reset_parameters", module._reset_parameters)()


def unfused(encoder: nn.TransformerEncoderLayer) -> None:
    """Keep an encoder layer off its fused path, which reads whole weights by itself."""
    encoder.activation_relu_or_gelu = 0


def normalises_batches(layer: nn.Module) -> bool:
    """Tell layers whose numbers hang on who is in a batch; torch's base classes are private."""
    return isinstance(layer, NormBase) and (
        isinstance(layer, BatchNorm) or layer.track_running_stats
    )


def gives_dtensor(node: Node) -> bool | None:
    """Tell what a node of the graph gives, where it turns tensors to DTensors (True) or back
    (False); None for others. The nodes are known by name alone."""
    return {"_FromTorchTensorBackward": True, "_ToTorchTensorBackward": False}.get(node.name())


SAVED_DIM, SAVED_SELF, SAVED_SIZES = "_saved_dim", "_saved_self", "_saved_self_sym_sizes"
SAVED_HOW, SAVED_TOTAL = "_saved_reduction", "_saved_total_weight"
"""What `saved` finds, where it is looked for at every step."""
peek_transform = torch._C._functorch.peek_interpreter_stack
"""The transform of torch.func that runs; None for none."""


def saved(node: Any, name: str) -> Any:
    """What a node of the autograd graph keeps for backward; None where it keeps no such thing."""
    return getattr(node, "_saved_" + name, None)


def shape_of(node: Any) -> tuple[int, ...]:
    """The sizes of what a node of the autograd graph made; none of nested tensors."""
    made = node._input_metadata
    return tuple(made[0].shape) if made and not made[0].is_nested_tensor else ()


def note(node: Any, key: str, value: object) -> None:
    """Leave a note on a node of the autograd graph, which lives as long as the node does."""
    node.metadata[key] = value


def is_number(kept: torch.Tensor) -> bool:
    """Whether what a node keeps was a number of Python's: those give way in type promotion."""
    if kept.dim() or kept.device.type != "cpu" or kept.dtype not in (torch.int64, torch.float64):
        return False
    return torch.result_type(kept, _NARROW) is not kept.dtype


_NARROW = torch.tensor(0, dtype=torch.int32)


def worker_info() -> tuple[Any, str, Any]:
    """Return where `get_worker_info` finds what it returns, its name there, and its class."""
    return worker, "_worker_info", worker.WorkerInfo


def done(tensors: list[torch.Tensor]) -> Any:
    """Return the work of a collective that has ended."""
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result(tensors)
    return _create_work_from_future(future)


def name_of_group(group: distributed.ProcessGroup) -> str:
    """Return the name that torch gave a group."""
    return distributed.distributed_c10d._get_process_group_name(group)


def gloo_group(store: Any, rank: int, size: int, timeout: Any) -> distributed.ProcessGroup:
    """Return a group of gloo's that torch's lists do not know of."""
    group = distributed.ProcessGroup(store, rank, size)
    gloo = distributed.ProcessGroupGloo(store, rank, size, timeout=timeout)
    group._set_default_backend(kind := distributed.ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), kind, gloo)
    return group
