"""Shares that follow the ranks' speeds, which they measure while they train."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any, final

import torch
from torch import nn

from dream._errors import Unsupported
from dream._log import logger
from dream.adapters.pytorch.private import NormBase
from dream.adapters.pytorch.randomness.current import current
from dream.collectives import Communicator
from dream.data.partition import Divided, Division, Share

_FIRST, _EVERY = 6, 32
"""Batches before the ranks compare for the first time, and between two times after that."""

_WORTH = 0.1
"""Part of a rank's share that a change must be to be made: times are noisy."""

_BLIND = (
    "shares='auto' leaves shares equal: BatchNorm over the global batch has ranks wait for one "
    "another in forward, where their speeds are measured. Give shares by hand, as in shares=[3, 1]"
)

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
        if device.type != "cpu":
            raise Unsupported(
                "A GPU computes asynchronously, so the ranks' speeds cannot be measured. Received: "
                f"shares='auto' on {device}. Give them by hand, as in shares=[3, 1]."
            )
        self._ranks, self._divided = ranks, divided
        self._samples, self._seconds = 0, 0.0
        self._given: tuple[float, int] | None = None
        self._left = _FIRST
        self._blind = self._over = False
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
                self._seconds += time.perf_counter() - began
                self._samples += samples
            return backward(*args, **kwargs)

        return timed

    def draw(self, loader: object, batch_size: int) -> None:
        """A batch of a loader to train on is about to be drawn. Every rank calls it as often, and
        they compare now and then. A thread that reads ahead draws while others train, and changes
        nothing."""
        if self._over or current.is_apart():
            return
        self._loader = self._loader or loader
        if loader is not self._loader:
            self._end(_SEVERAL)
            return
        self._left -= 1
        if self._left > 0 or batch_size < self._divided.now.parts:
            return
        self._left = _EVERY
        seen = [self._samples, self._seconds, self._blind]
        told = self._ranks.all_gather_object(seen)
        self._samples, self._seconds = 0, 0.0
        if any(blind for *_, blind in told):
            self._end(_BLIND)
        elif all(samples and seconds for samples, seconds, _ in told):
            self._follow([samples / seconds for samples, seconds, _ in told], batch_size)

    def _end(self, why: str) -> None:
        self._over = True
        logger.info(why)

    def _follow(self, speeds: list[float], batch_size: int) -> None:
        wanted = Division.by_speed(speeds, batch_size)
        parts = range(wanted.parts)
        now = [len(self._divided.now.rows(batch_size, part)) for part in parts]
        then = [len(wanted.rows(batch_size, part)) for part in parts]
        if any(abs(a - b) > max(_WORTH * a, 1) for a, b in zip(now, then, strict=True)):
            self._divided.now = wanted
            logger.info(
                "shares follow the ranks' speeds: of %d samples %s by rank, before %s",
                batch_size, then, now,
            )  # fmt: skip
