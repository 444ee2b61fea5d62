"""A pass over a loader, as far as it has handed out batches."""

from __future__ import annotations

from collections import deque
from typing import final

from dream.adapters.pytorch.randomness.current import current
from dream.data.partition import Share

_FAR = 8
"""Batches that a loop reads ahead, at most."""


@final
class PassReading:
    """A pass over a loader. recent: shares of the batches handed out last; a tuple, as a thread may
    read for another. lag: batches between what is yielded and what is trained on, once that is
    known; ahead: while it was read, which is a prefetcher's. largest: samples of a batch, so far.
    thread: that reads. why: its batches are whole on every rank, as is said; None where they are
    not. waiting: what it has read, and nobody has trained on yet, where that is told by the order.
    """

    def __init__(self) -> None:
        self.recent: tuple[Share | None, ...] = ()
        self.largest = 0
        self.lag: int | None = None
        self.ahead = False
        self.ended = False
        self.why: str | None = None
        self.thread = current.here()
        self.waiting: deque[Share] = deque()

    @property
    def newest(self) -> Share | None:
        """That of the batch handed out last."""
        return self.recent[-1] if self.recent else None

    @property
    def apart(self) -> bool:
        """Whether another thread reads it."""
        return self.thread != current.here()

    def yields(self, share: Share | None) -> None:
        """It hands out a batch; None for that there is none left."""
        self.recent = (*self.recent[-_FAR:], share)
        self.ended = share is None
        if share is not None and share.total > self.largest:
            self.largest = share.total

    def share(self) -> Share | None:
        """That of the batch that is trained on now, as far as yields tell."""
        if self.lag is None:
            many = len(self.recent)
            self.lag = many - 1 if many <= _FAR else 0  # more were skipped, not kept
            self.ahead = bool(self.lag) and not self.ended
        place = len(self.recent) - 1 - self.lag
        return self.recent[place] if place >= 0 else None

    def trained_on(self, share: Share) -> None:
        """It is known which batch is trained on."""
        while self.waiting and any(each is share for each in self.waiting):
            self.waiting.popleft()
        for lag, each in enumerate(reversed(self.recent)):
            if each is share:
                self.lag = lag
                return
