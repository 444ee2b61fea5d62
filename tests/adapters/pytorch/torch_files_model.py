"""A model in a file that needs no dream."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Keeping(nn.Module):
    """Says itself what of it is pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.fc(x)
        return made

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()
