"""torch's private names that sharding needs: a function each, and what torch has no public one for.

Seen in torch 2.13.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node
from torch.utils import _pytree

tree_map = _pytree.tree_map
tree_leaves: Callable[[Any], list[Any]] = _pytree.tree_leaves

_HOOKS = (
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks",
    "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
)  # fmt: skip
_FSDP_ORIGINAL = 2  # FSDP<Name>'s bases: FSDPModule, <Name>


def structure_of(value: object) -> tuple[type[Any], list[Any], Any] | None:
    """Split a container that torch knows, but no named tuple, into (kind, children, context).
    pytree: torch's functions take such containers, and only it knows which are registered."""
    node = _pytree.SUPPORTED_NODES.get(type(value))
    if node is None:
        return None
    children, context = node.flatten_fn(value)
    return type(value), list(children), context


def structure_kinds() -> Sequence[type[Any]]:
    """Return the kinds of containers that torch knows."""
    return list(_pytree.SUPPORTED_NODES)


def structure_made(kind: type[Any], children: list[Any], context: Any) -> Any:
    """Put a container together again."""
    return _pytree.SUPPORTED_NODES[kind].unflatten_fn(children, context)


def is_named_tuple(value: object) -> bool:
    """Tell named tuples from tuples, as torch does."""
    return bool(_pytree.is_namedtuple_instance(value))


def after_backward(callback: Callable[[], None]) -> None:
    """Call at the end of the backward pass that runs now. torch's DDP and FSDP do it so; hooks on
    tensors come before the gradients are in place."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def changeable(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same memory as a tensor that may be changed in place: what a DTensor gives is a
    view, which may not, and a copy would cost its size."""
    made: torch.Tensor = torch.ops.aten._unsafe_view(tensor, tensor.shape)
    return made


def is_view(tensor: torch.Tensor) -> bool:
    """Tell whether autograd takes the tensor for a view. No public name tells."""
    return tensor._is_view()


def functions_unseen() -> Any:
    """Make a context in which no torch function mode sees what is called. The public one keeps
    modes on."""
    return torch._C.DisableTorchFunction()


def has_hooks(module: nn.Module) -> bool:
    """Tell whether forward hooks are on a module: they can be registered, not listed."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


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
    """Copy a module that has no memory, alone: children cannot be deleted through a public name
    where a class reads them."""
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
    base = nn.modules.batchnorm
    return isinstance(layer, base._NormBase) and (
        isinstance(layer, base._BatchNorm) or layer.track_running_stats
    )


def gives_dtensor(node: Node) -> bool | None:
    """Tell what a node of the graph gives, where it turns tensors to DTensors (True) or back
    (False); None for others. The nodes are known by name alone."""
    return {"_FromTorchTensorBackward": True, "_ToTorchTensorBackward": False}.get(node.name())


def know_root(root: nn.Module) -> None:
    """Have FSDP2 know its root now: else it takes the first module that is called, and refuses the
    whole once one of its parts has been called by itself."""
    from torch.distributed.fsdp import fully_shard  # which takes a while

    fully_shard.state(root)._lazy_init()  # type: ignore[attr-defined]


def original_class(module: nn.Module) -> type[nn.Module]:
    """Return the user's class of a module that FSDP2 shards, by its renamed class."""
    original: type[nn.Module] = type(module).__mro__[_FSDP_ORIGINAL + 1]
    return original


def named_as_before(made: type[Any], **methods: Any) -> type[Any]:
    """Make of FSDP2's class, `FSDP<Name>`, one with the user's name, and methods beside. FSDP2
    counts bases to find the original."""
    original = made.__mro__[_FSDP_ORIGINAL]
    names = {"__module__": original.__module__, "__qualname__": original.__qualname__}
    counted = {"_orig_cls_mro_index": _FSDP_ORIGINAL + 1}
    return type(original.__name__, (made,), {**methods, **names, **counted})


def state_without_fsdp(module: nn.Module) -> dict[str, Any]:
    """Return a module's attributes without FSDP2's own."""
    held = vars(module).items()
    return {n: v for n, v in held if n not in _HOOKS and not n.startswith("__composable_api")}


def clear_hooks(module: nn.Module) -> None:
    """Have no hooks where FSDP2 and dream put theirs."""
    for name in _HOOKS:
        vars(module)[name] = OrderedDict()
