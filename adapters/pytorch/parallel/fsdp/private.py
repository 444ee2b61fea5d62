"""What dream uses of FSDP2, and torch does not promise to keep."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

_HOOKS = {
    "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
    "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    "_state_dict_pre_hooks": (), "_load_state_dict_pre_hooks": (),
    "_load_state_dict_post_hooks": (),
}  # fmt: skip
"""Where FSDP2 and dream put hooks, and what is kept of each beside it."""
_MARKS = ("__composable_api", "_is_fsdp_managed_module", "_fsdp_use_orig_params")
"""How attributes begin that FSDP2 puts on modules."""
_OURS = ("torch.distributed.", "dream.")
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


def without_fsdp(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a module's attributes without FSDP2's own, and of hooks the script's alone."""
    held = {n: v for n, v in attributes.items() if not n.startswith(_MARKS)}
    for name, beside in _HOOKS.items():
        held[name] = OrderedDict((k, v) for k, v in held[name].items() if not _is_ours(v))
        for flags in beside:
            kept = ((k, v) for k, v in held[flags].items() if k in held[name])
            held[flags] = OrderedDict(kept)
    return held


def _is_ours(hook: Any) -> bool:
    function = getattr(hook, "hook", hook)  # of one that is called with its module
    function = getattr(function, "func", function)
    return str(getattr(function, "__module__", "")).startswith(_OURS)
