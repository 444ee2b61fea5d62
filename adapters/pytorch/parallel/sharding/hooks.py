"""What the block replaces in torch for the strategies that shard a model, and nothing else does.

Each function notes its replacements in `patches`, which takes them back at the block's end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import fx, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dream._errors import ConfigurationError
from dream.adapters.pytorch import hooks
from dream.adapters.pytorch.call_hook import wrap_compile
from dream.adapters.pytorch.data.loader import LoaderSharder
from dream.adapters.pytorch.hooks import Patches
from dream.adapters.pytorch.keras.entry import refuse_keras
from dream.adapters.pytorch.parallel._private import tree_leaves
from dream.adapters.pytorch.parallel.sharding.gradients import (
    clip_to_norm,
    clip_to_value,
    global_norm,
    gradients_of,
)
from dream.adapters.pytorch.parallel.sharding.state import reason_not_saved
from dream.adapters.pytorch.parallel.sharding.step import ordinary_gradients


def hook_loaders(patches: Patches, dealer: LoaderSharder) -> None:
    """Deal loaders' batches, and have files written once."""
    patches.replace(DataLoader, "__init__", dealer.wrap_init(DataLoader.__init__))
    hooks.enter(patches.replace)


def hook_modules(patches: Patches, strategy: str, made: Callable[[nn.Module], None]) -> None:
    """Call `made` with each module that is made. Keras's are refused."""
    init = nn.Module.__init__

    @wraps(init)
    def wrapped(module: nn.Module, *args: Any, **kwargs: Any) -> None:
        refuse_keras(module, strategy)
        init(module, *args, **kwargs)
        made(module)

    patches.replace(nn.Module, "__init__", wrapped)


def hook_optimizers(
    patches: Patches,
    made: Callable[[Optimizer], None],
    before: Callable[[], None] = lambda: None,
) -> None:
    """Call `made` with each optimizer that is made, and `before` before it reads parameters."""
    init: Callable[..., None] = Optimizer.__init__

    @wraps(init)
    def wrapped(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        before()
        init(optimizer, *args, **kwargs)
        made(optimizer)

    patches.replace(Optimizer, "__init__", wrapped)


def hook_compile(patches: Patches) -> None:
    """Have `Module.compile` compile what dream's calls run."""
    patches.replace(nn.Module, "compile", wrap_compile(nn.Module.compile))


def hook_save(patches: Patches) -> None:
    """Have `torch.save` write whole tensors only: a file of shards would be read as a model. It
    raises on every rank, where a pickler would on the one that writes."""
    save: Callable[..., None] = torch.save

    @wraps(save)
    def wrapped(obj: object, *args: Any, **kwargs: Any) -> None:
        for leaf in tree_leaves(obj):
            reason = reason_not_saved(leaf)
            if reason is not None:
                raise ConfigurationError(reason)
        save(obj, *args, **kwargs)

    patches.replace(torch, "save", wrapped)


def hook_backward(patches: Patches) -> None:
    """Have `backward` take losses of DTensors and of ordinary tensors together."""
    backward: Callable[..., None] = torch.autograd.backward

    @wraps(backward)
    def wrapped(tensors: Any, *args: Any, **kwargs: Any) -> None:
        starts = [tensors] if isinstance(tensors, torch.Tensor) else [*tensors]
        with ordinary_gradients(starts):
            backward(tensors, *args, **kwargs)

    patches.replace(torch.autograd, "backward", wrapped)


def hook_grad(patches: Patches, keep_gathered: Callable[[bool], None]) -> None:
    """Have `torch.autograd.grad` keep the parameters where its result may be differentiated."""
    grad: Callable[..., Any] = torch.autograd.grad

    @wraps(grad)
    def wrapped(*args: Any, create_graph: bool = False, **kwargs: Any) -> Any:
        keep_gathered(create_graph)
        try:
            return grad(*args, create_graph=create_graph, **kwargs)
        finally:
            keep_gathered(False)

    patches.replace(torch.autograd, "grad", wrapped)


def hook_clipping(patches: Patches) -> None:
    """Have torch's two functions that clip see the whole of a gradient."""
    clip_norm: Callable[..., torch.Tensor] = nn.utils.clip_grad_norm_
    clip_value: Callable[..., None] = nn.utils.clip_grad_value_

    @wraps(clip_norm)
    def to_norm(
        parameters: Any,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> torch.Tensor:
        listed, gradients = _sharded(parameters)
        if gradients is None:
            return clip_norm(listed, max_norm, norm_type, error_if_nonfinite, foreach)
        if error_if_nonfinite and not (total := global_norm(gradients, norm_type)).isfinite():
            raise RuntimeError(f"The total norm of order {norm_type} is not finite: {total}.")
        return clip_to_norm(gradients, float(max_norm), float(norm_type))

    @wraps(clip_value)
    def to_value(parameters: Any, largest: float, foreach: bool | None = None) -> None:
        listed, gradients = _sharded(parameters)
        if gradients is None:
            clip_value(listed, largest, foreach)
        else:
            clip_to_value(gradients, float(largest))

    patches.replace(nn.utils, "clip_grad_norm_", to_norm)
    patches.replace(nn.utils, "clip_grad_value_", to_value)


def _sharded(parameters: Any) -> tuple[list[torch.Tensor], list[torch.Tensor] | None]:
    """List the parameters, and their gradients where some are sharded."""
    listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    gradients = gradients_of(listed)
    return listed, gradients if any(isinstance(g, DTensor) for g in gradients) else None


@contextmanager
def factories_traced() -> Iterator[None]:
    """Have torch.ones and the like, which take sizes alone, noted where a size is a stand-in of
    torch.fx."""
    patches = Patches()
    for name in ("ones", "zeros", "full", "empty", "eye", "arange", "rand", "randn"):
        patches.replace(torch, name, _noting(getattr(torch, name)))
    try:
        yield
    finally:
        patches.restore()


def _noting(make: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(make)
    def noted(*args: Any, **kwargs: Any) -> Any:
        for given in (*args, *kwargs.values()):
            if isinstance(given, fx.Proxy):
                return given.tracer.create_proxy("call_function", make, args, kwargs)
        return make(*args, **kwargs)

    return noted
