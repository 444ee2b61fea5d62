"""Layers that are computed again where copies of a model run in threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import nn

from dream._errors import Unsupported
from dream.adapters.pytorch.parallel.inner_calls import called_by_user
from dream.adapters.pytorch.parallel.replicas.meeting import normalises
from dream.adapters.pytorch.parallel.replicas.team import Team
from dream.adapters.pytorch.update.recompute import How, recompute


@final
class Recomputing:
    """Of one strategy's models.

    how: which layers. together: BatchNorm sees all parts of a batch.
    """

    def __init__(self, team: Team, how: How, *, together: bool) -> None:
        self._team, self._how, self._together = team, how, together

    def take(self, model: nn.Module, copies: Sequence[nn.Module]) -> None:
        """Copies are about to be called, the model itself may be among them."""
        if not (self._how and torch.is_grad_enabled()):
            return
        opened = self._team.opened(model)
        for copy in copies:
            chosen = recompute(copy, self._how, _trains, opened=opened, in_threads=True)
            if self._together and len(copies) > 1:
                _refuse_meeting(copy, chosen)


def _trains() -> bool:
    return not called_by_user()


def _refuse_meeting(model: nn.Module, layers: Sequence[nn.Module]) -> None:
    names = {part: name for name, part in model.named_modules()}
    for layer in layers:
        if normalises(layer):
            raise Unsupported(
                "A BatchNorm that sees the whole batch waits for the other copies of its model, "
                "which do not compute it again at the same time. Received: a BatchNorm in layer "
                f"{names[layer]!r} ({type(layer).__name__}), to be recomputed. Name layers without "
                "one, say sync_batch_norm=False, or use 'mirrored'."
            )
