"""The passes over one loader: whose epoch each is, and how far it came."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, final

from dream.data.partition import Share
from dream.data.position import Position


@final
class Track:
    """The passes to train on over one loader.

    epoch: that of the next pass. facts: of the data as it is then, kept with its state.
    """

    def __init__(self, facts: Callable[[], Mapping[str, Any]]) -> None:
        self.epoch = 0
        self._facts = facts
        self._start: Position | None = None
        self._last: Pass | None = None

    def begin(self) -> Position:
        """Where the next pass to train on starts. A loader may ask more than once for one."""
        return self._start or Position(self.epoch)

    def began(self, last: Pass) -> None:
        """A pass has been asked for its first batch."""
        self._last, self._start = last, None

    def state(self) -> dict[str, Any]:
        position = self._start or (self._last and self._last.position) or Position(self.epoch)
        return position.state(self._facts())

    def load(self, state: Mapping[str, Any]) -> None:
        self._start = Position.of(state, self._facts())
        self._last = None
        self.epoch = self._start.epoch


@final
class Pass:
    """One iteration over a loader.

    track: whose epoch it counts as one of; None where it counts for nothing. trains: whether it
    yields shares to train on. position: before the batch that comes next. length: in batches,
    where it is known.
    """

    def __init__(
        self, track: Track | None, start: Position, *, trains: bool, length: int = 0
    ) -> None:
        self.length = length
        self.trains = trains
        self.position = start
        self._track = track
        self._first = 1 if start.batches else 2
        self._asked = 0
        self._drawn: deque[tuple[Share, int]] = deque()

    def ask(self) -> None:
        """A batch is asked for. With the second one the epoch counts: whoever only looks at a
        first batch does not change the order of what follows. One that goes on counts at once."""
        self._asked += 1
        if self._asked == 1 and self.trains and self._track is not None:
            self._track.began(self)
        if self._asked == self._first and self._track is not None:
            self._track.epoch += 1

    def drawn(self, share: Share, digest: int = 0) -> None:
        """A batch, or a part of one, that will be handed out. digest: see `Position`."""
        self._drawn.append((share, digest))

    def handed(self) -> Share:
        """The share that is handed out now. A batch in parts has been with its last one."""
        share, digest = self._drawn.popleft()
        if share.last:
            self.position = self.position.after(share.total, digest)
        return share

    def ended(self) -> None:
        """The epoch is over: what comes next is another."""
        self.position = replace(Position(), epoch=self.position.epoch + 1)
