"""What the ranks' models must agree on before one is distributed."""

from __future__ import annotations

from torch import nn
from torch.nn.parameter import UninitializedParameter

from dream._errors import Unsupported


def layout_of(module: nn.Module) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and dtype of each parameter and buffer, in order."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return [(name, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in named]


def refuse_uninitialised(module: nn.Module) -> None:
    """Raise for a lazy module's parameter that has no shape yet."""
    for name, parameter in module.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise Unsupported(
                f"A parameter has no shape yet, so it cannot be distributed. Received: {name} of "
                f"{type(module).__name__}. Call the model once under torch.no_grad() first."
            )


def refuse_meta(module: nn.Module) -> None:
    """Raise for a parameter on the meta device, which has no values."""
    for name, parameter in module.named_parameters():
        if parameter.is_meta:
            raise Unsupported(
                "A model on the meta device has no values to replicate. Received: "
                f"{name} of {type(module).__name__}. Make it on its real device; 'sharded' and "
                "split='tensor' take it as it is."
            )
