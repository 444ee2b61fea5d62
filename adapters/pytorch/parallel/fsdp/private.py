"""What dream uses of FSDP2, and torch does not promise to keep."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

_HOOKS = (
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks",
    "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
)  # fmt: skip
_FSDP_ORIGINAL = 2  # FSDP<Name>'s bases: FSDPModule, <Name>


def know_root(root: nn.Module) -> None:
    """Have FSDP2 know its root now, whichever parts were: else it takes what is called first."""
    from torch.distributed.fsdp import fully_shard  # which takes a while

    state: Any = fully_shard.state(root)  # type: ignore[attr-defined]
    parts = root.modules() if state._is_root is None else ()
    for part in filter(None, map(state._get_state_for_module, parts)):
        part._is_root = None
    state._lazy_init()


def end_backward(units: Iterable[Any]) -> None:
    """Have FSDP2 do once more what it does as a backward pass ends: reduce what is there."""
    from torch.distributed.fsdp import fully_shard  # which takes a while

    for unit in units:
        state: Any = fully_shard.state(unit)  # type: ignore[attr-defined]
        if state._is_root:
            state._root_post_backward_final_callback()


def begin_backward_at(unit: Any, tensors: Iterable[torch.Tensor]) -> None:
    """Have FSDP2 gather a unit for the backward pass that comes to one of these, too."""
    from torch.distributed.fsdp import fully_shard  # which takes a while

    state: Any = fully_shard.state(unit)  # type: ignore[attr-defined]
    state._register_pre_backward_hook([*tensors])


def drop_gathers(units: Iterable[Any]) -> None:
    """Wait for what was gathered ahead and is not in use, and let go of it."""
    from torch.distributed.fsdp import fully_shard  # which takes a while

    for unit in units:
        state: Any = fully_shard.state(unit)  # type: ignore[attr-defined]
        for group in state._fsdp_param_groups:
            if group._all_gather_result is not None:
                group.wait_for_unshard()
                group.reshard()


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
