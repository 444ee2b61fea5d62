"""How a reduction takes part in DDP."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch._C._distributed_c10d import GradBucket

from dream.collectives import Wire

GradientHook = Callable[[object, GradBucket], torch.futures.Future[torch.Tensor]]
"""(state, bucket) -> a future of the bucket's buffer, averaged over the ranks."""


class TorchWire(Wire):
    """A wire that may also carry DDP's buckets."""

    @property
    @abstractmethod
    def gradient_hook(self) -> GradientHook | None:
        """What DDP reduces a bucket with; None leaves it to DDP's own process group."""
