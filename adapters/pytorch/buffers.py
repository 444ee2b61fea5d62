"""Running statistics: the mean over ranks of what each has seen."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from dream._log import logger


def norms(module: nn.Module) -> list[nn.Module]:
    """The normalisations that keep running statistics."""
    return [m for m in module.modules() if isinstance(m, _NormBase) and m.track_running_stats]


def running(norms: list[nn.Module]) -> list[torch.Tensor]:
    """The statistics that a training step changes: floating point buffers of the norms in
    training mode, detached, since backward keeps them without using their values."""
    return [
        buffer.data
        for norm in norms
        if norm.training
        for buffer in norm.buffers(recurse=False)
        if buffer.is_floating_point()
    ]


def tell_local_statistics(module: nn.Module) -> None:
    """Say in a line that normalising over a rank's own share is not what one device does."""
    batch = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if any(not isinstance(norm, nn.SyncBatchNorm) for norm in batch):
        logger.info(
            "%s normalises each rank's share by itself (BatchNorm), so its numbers cannot equal "
            "those of one device",
            type(module).__name__,
        )
