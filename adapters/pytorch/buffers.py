"""Running statistics: the mean over ranks of what each has seen."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from dream._log import logger


def running(module: nn.Module) -> list[torch.Tensor]:
    """The floating point buffers of the normalisations that keep running statistics."""
    return [
        buffer
        for norm in module.modules()
        if isinstance(norm, _NormBase) and norm.track_running_stats
        for buffer in norm.buffers(recurse=False)
        if buffer.is_floating_point()
    ]


def tell_local_statistics(module: nn.Module) -> None:
    """Say in a line that normalising over a rank's own share is not what one device does."""
    norms = [norm for norm in module.modules() if isinstance(norm, nn.modules.batchnorm._BatchNorm)]
    if any(not isinstance(norm, nn.SyncBatchNorm) for norm in norms):
        logger.info(
            "%s normalises each rank's share by itself (BatchNorm), so its numbers cannot equal "
            "those of one device",
            type(module).__name__,
        )
