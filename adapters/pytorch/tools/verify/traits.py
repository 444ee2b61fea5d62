"""What a module is like, as far as it bears on equality with one device."""

from __future__ import annotations

import torch
from torch import nn

from dream.tools.recording.reading import Traits

_DROPPING = (nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNNBase)


def traits(model: nn.Module) -> Traits:
    """Read off the module's parts, as they are now."""
    named = list(model.named_modules())
    return Traits(
        dtype=_dtype(model),
        trained={name for name, p in model.named_parameters() if p.requires_grad},
        draws=[_told(name, part) for name, part in named if _drops(part)],
        statistics=[_told(name, part) for name, part in named if _normalises_locally(part)],
        named=lambda name: name,
    )


def _dtype(model: nn.Module) -> str:
    """The coarsest float among its parameters."""
    found = {p.dtype for p in model.parameters() if p.dtype.is_floating_point}
    widest_step = max(found, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)
    return str(widest_step).removeprefix("torch.")


def _drops(part: nn.Module) -> bool:
    if not isinstance(part, _DROPPING):
        return False
    return bool(part.p if isinstance(part, nn.modules.dropout._DropoutNd) else part.dropout)


def _normalises_locally(part: nn.Module) -> bool:
    batch = isinstance(part, nn.modules.batchnorm._BatchNorm)
    return batch and not isinstance(part, nn.SyncBatchNorm)


def _told(name: str, part: nn.Module) -> str:
    return f"{name or 'the model'} ({type(part).__name__})"
