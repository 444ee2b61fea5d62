"""Lazy modules, whose parameters have no shape before their first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from dream._errors import Unsupported
from dream.adapters.pytorch.private import tree_leaves


def has_shapes(module: nn.Module) -> bool:
    """Whether every parameter of a module has a shape."""
    return not any(isinstance(each, UninitializedParameter) for each in module.parameters())


def give_shapes(
    module: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a module on what is no batch, as on zeros of a batch's shape: every rank draws the same
    parameters. A backward pass from what it gives raises, since no rank would average it."""

    name = type(module).__name__  # a lazy class of torch's becomes another by the call

    def refuse(_: torch.Tensor) -> None:
        raise Unsupported(
            "A loss comes of the call that gave a model's parameters their shapes. Received: "
            f"backward through the first call of {name}. Call the model once before the loop, on "
            "zeros of a batch's shape."
        )

    output = call(*args, **kwargs)
    for leaf in tree_leaves(output):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            leaf.register_hook(refuse)
    return output


def refuse_shapeless(module: nn.Module) -> None:
    """Raise for a parameter that has no shape yet."""
    for name, parameter in module.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise Unsupported(
                f"A parameter has no shape yet, so it cannot be distributed. Received: {name} of "
                f"{type(module).__name__}. Call the model once before the loop, on zeros of a "
                "batch's shape."
            )
