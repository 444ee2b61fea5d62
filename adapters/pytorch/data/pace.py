"""Shares that follow the ranks' speeds, which they measure while they train."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any, final

import torch
from torch import nn

from dream.adapters.pytorch.private import NormBase
from dream.adapters.pytorch.randomness.current import current
from dream.collectives import Communicator
from dream.data.pace import WARM, Speeds, Taken, check_measured
from dream.data.partition import Divided, Share

_SEVERAL = (
    "shares='auto' leaves shares as they are: batches of several loaders are trained on, and those "
    "that are used together are to be divided alike. Give shares by hand, as in shares=[3, 1]"
)


@final
class SharePace:
    """Has the shares of a batch follow what the ranks have taken from being given a batch to the
    start of backward: what lies there grows with the share, and no rank waits for another in it.

    Batches of several loaders are often used together, and read ahead by different numbers: there
    the shares stay as they are.

    divided: what is changed, between two batches, on all ranks alike.
    """

    def __init__(self, ranks: Communicator, divided: Divided, device: torch.device) -> None:
        check_measured(str(device))
        self._ranks, self._speeds = ranks, Speeds(ranks, divided)
        self._samples, self._seconds, self._batches = 0, 0.0, -WARM
        self._given: tuple[float, int] | None = None
        self._blind = False
        self._loader: object = None

    def made(self, module: nn.Module) -> None:
        """A module was made whose forward pass waits for other ranks where it is a BatchNorm."""
        self._blind |= isinstance(module, NormBase)

    def given(self, share: Share) -> None:
        """The loop is given a batch."""
        self._given = time.perf_counter(), share.count

    def wrap(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """`torch.autograd.backward`, at whose start a forward pass and its loss are over."""

        @wraps(backward)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._given is not None:
                began, samples = self._given
                self._given = None
                self._batches += 1
                if self._batches > 0:
                    self._seconds += time.perf_counter() - began
                    self._samples += samples
            return backward(*args, **kwargs)

        return timed

    def draw(self, loader: object, batch_size: int) -> None:
        """A batch of a loader to train on is about to be drawn. Every rank calls it as often, and
        they compare now and then. A thread that reads ahead draws while others train, and changes
        nothing."""
        if self._speeds.over or current.is_apart():
            return
        self._loader = self._loader or loader
        if loader is not self._loader:
            self._speeds.end(_SEVERAL)
            return
        if batch_size >= self._ranks.world_size and self._speeds.due():
            taken = Taken(self._samples, self._seconds, self._batches)
            self._samples, self._seconds, self._batches = 0, 0.0, 0
            self._speeds.compare(taken, blind=self._blind)
