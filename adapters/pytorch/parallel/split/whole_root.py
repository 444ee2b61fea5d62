"""One rank: a model in one part."""

from __future__ import annotations

from typing import final

import torch
from torch import nn

from dream.adapters.pytorch.parallel.split.meta import Blueprints, is_meta
from dream.adapters.pytorch.parallel.split.room import Room
from dream.adapters.pytorch.parallel.split.root import Forward, SplitRoot


@final
class WholeRoot(SplitRoot):
    """Nothing is split; a model made on the meta device gets its memory."""

    def __init__(
        self, module: nn.Module, room: Room, inner: Forward | None, *, device: torch.device
    ) -> None:
        super().__init__(module, room, inner)
        self._device = device

    def cut(self) -> None:
        if is_meta(self.module):
            Blueprints(self.module).fill(self.module, self._device, self.room.world)
        self.parts = {id(parameter): parameter for parameter in self.module.parameters()}

    def weigh(self, weight: float) -> None:
        """There are no others to count beside."""

    def gather(self, *, fresh: bool, completes: bool) -> None:
        """Backward adds up by itself."""

    @property
    def gathering(self) -> list[nn.Parameter]:
        return [*self.parts.values()]

    def rest(self) -> None:
        """Nothing was gathered."""

    def of_copy(self, module: nn.Module) -> None:
        return None
