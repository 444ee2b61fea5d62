"""FSDP2's modules, with the names and the copies of ordinary ones.

`fully_shard` gives a module a class of its own making, whose copies are refused.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, NoReturn

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from dream._errors import ConfigurationError
from dream.adapters.pytorch.call_hook import hook_of, set_hook
from dream.adapters.pytorch.parallel.split.in_parts import said_of_module
from dream.adapters.pytorch.parallel.split.root import Part, SplitRoot, copy_parts

_HALF = (torch.float16, torch.bfloat16)
_ORIGINAL = 2  # FSDP<Name>'s bases: FSDPModule, <Name>


def shard(module: nn.Module, mesh: DeviceMesh, *, reshard: bool | None) -> FSDPModule:
    """Shard what is not sharded yet of a module's parameters, in place. reshard: whether they are
    given up between forward and backward; None for everywhere but at the root. Gradients in half
    precision are added up in float32."""
    half = any(p.dtype in _HALF for p in module.parameters())
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32 if half else None)
    fully_shard(module, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    made: Any = type(module)
    module.__class__ = _named_as_before(made)
    assert isinstance(module, FSDPModule)
    return module


def begin(root: nn.Module) -> None:
    """Have FSDP2 know its root now: else it takes the first module that is called, and refuses the
    whole once one of its parts has been called by itself."""
    fully_shard.state(root)._lazy_init()  # type: ignore[attr-defined]


@cache
def _named_as_before(made: Any) -> Any:
    original = made.__mro__[_ORIGINAL]
    return type(
        original.__name__,
        (made,),
        {
            "__deepcopy__": _copied,
            "__reduce_ex__": _not_pickled,
            "__module__": original.__module__,
            "__qualname__": original.__qualname__,
            "_orig_cls_mro_index": _ORIGINAL + 1,
        },
    )


def _copied(module: Any, memo: dict[int, Any]) -> nn.Module:
    """An ordinary module with copies of this rank's parts; it is split where it is called."""
    module.reshard()
    original: Any = type(module).__mro__[_ORIGINAL + 1]
    made: nn.Module = original.__new__(original)
    memo[id(module)] = made
    copy_parts(module, memo)
    state = {name: value for name, value in vars(module).items() if not _is_of_fsdp(name)}
    vars(made).update(copy.deepcopy(state, memo))
    for name in _HOOKS:
        vars(made)[name] = type(vars(module)[name])()
    slot = hook_of(module)
    root = slot.root if isinstance(slot, Part) else slot
    if isinstance(root, SplitRoot):
        set_hook(made, root.of_copy(made))
    return made


def _is_of_fsdp(name: str) -> bool:
    return name in _HOOKS or name.startswith("__composable_api")


def _not_pickled(module: nn.Module, _: int) -> NoReturn:
    raise ConfigurationError(said_of_module(type(module).__name__))


_HOOKS = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks",
          "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
          "_state_dict_pre_hooks", "_load_state_dict_pre_hooks")  # fmt: skip
"""Where FSDP2 and dream have put theirs."""
