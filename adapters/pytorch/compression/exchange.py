"""What turns each rank's gradients into those that all ranks step on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch


class Exchange(ABC):
    """Of a bucket's gradients. All ranks come out with the same bits."""

    @abstractmethod
    def takes(self, gradient: torch.Tensor) -> bool:
        """Whether this one is worth it; the others are averaged as they are."""

    @abstractmethod
    def __call__(
        self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        """Write the gradients of all ranks over this rank's. parameters: whose they are, which
        stay the same from step to step."""
