"""Say where a pass over data stands, in global batches: the same for any number of replicas, so
that another number of them can go on from there."""

from __future__ import annotations

import itertools
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol, Self, final

from dream._errors import ConfigurationError
from dream.data import tracked
from dream.data.partition import Share

_moments = itertools.count(1)
"""By which passes are told to come before one another."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a loader stands in its data.

    epoch: which pass. batches, samples: of it, handed out so far. digest: of what was handed
    out, where the order is not dream's; 0 where it is.
    """

    epoch: int = 0
    batches: int = 0
    samples: int = 0
    digest: int = 0

    def after(self, samples: int, digest: int = 0) -> Self:
        """One global batch further on."""
        return type(self)(self.epoch, self.batches + 1, self.samples + samples, digest)

    def state(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """As a dict of plain numbers. facts: of the data, which must be the same when it is read
        on."""
        return {**asdict(self), **facts}

    @classmethod
    def of(cls, state: Mapping[str, Any], facts: Mapping[str, Any]) -> Self:
        """What `state` made, for data of the same facts."""
        names = [field.name for field in fields(cls)]
        missing = [name for name in (*names, *facts) if name not in state]
        if missing:
            raise ConfigurationError(
                "This is not a state of this kind of data. Received: a dict without "
                f"{', '.join(map(repr, missing))}. Pass what state_dict() returned."
            )
        other = {name: state[name] for name, own in facts.items() if state[name] != own}
        if other:
            raise ConfigurationError(
                "This state belongs to different data, so samples would be skipped or repeated. "
                f"Received: {_told(other)} in the state, {_told(facts, other)} here. Read the same "
                "data with the same options."
            )
        return cls(**{name: int(state[name]) for name in names})


def chained(digest: int, said: bytes) -> int:
    """The digest of what a digest is of and one thing more."""
    return zlib.crc32(said, digest)


def check_read_again(found: int, position: Position) -> None:
    """Whether what was left out, since it was handed out before, is what was handed out.

    found: the digest of it.
    """
    if found != position.digest:
        raise ConfigurationError(
            "The data is in a different order than when its state was saved, so samples would be "
            f"skipped or repeated. Received: digest {found} of the first {position.batches} "
            f"batches, {position.digest} in the state. Seed whatever draws or shuffles them, or "
            "let shuffle=True choose the order."
        )


def check_long_enough(read: int, position: Position) -> None:
    """Whether as many batches as were handed out before could be left out."""
    if read < position.batches:
        raise ConfigurationError(
            f"The data ended before the position at which its state was saved. Received: {read} "
            f"batches, {position.batches} in the state. Read the same data."
        )


def _told(facts: Mapping[str, Any], only: Mapping[str, Any] | None = None) -> str:
    return ", ".join(f"{name}={facts[name]!r}" for name in (facts if only is None else only))


class Drawn(Protocol):
    """What draws the order of a pass, where that is the script's own."""

    def state(self, *, begun: bool) -> dict[str, Any]:
        """Return what a pass needs to draw its order again, as plain values. begun: whether the
        next pass has been asked for, and drawn for that, though for none of its batches yet."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Have the next pass draw it again."""


@final
class Track:
    """The passes to train on over one loader.

    epoch: that of the next pass. facts: of the data as it is then, kept with its state. drawn: what
    draws the order; None where it depends on the epoch alone. between: called before each batch,
    if anything is to be. handed: batches to train on, so far.
    """

    def __init__(self, facts: Callable[[], Mapping[str, Any]], drawn: Drawn | None = None) -> None:
        self.epoch = 0
        self.between: Callable[[], None] | None = None
        self.handed = 0
        tracked.count(self)
        self._facts = facts
        self._drawn = drawn
        self._start: Position | None = None
        self._last: Pass | None = None
        self._begun = False

    def begin(self) -> Position:
        """Where the next pass to train on starts. A loader may ask more than once for one."""
        self._begun = True
        return self._start or Position(self.epoch)

    def began(self, last: Pass) -> None:
        """A pass has been asked for its first batch."""
        last.began = next(_moments)
        self._last, self._start, self._begun = last, None, False

    def state(self) -> dict[str, Any]:
        return self.state_beside(())

    def state_beside(self, others: Sequence[Any]) -> dict[str, Any]:
        position = self._start or (self._last and self._last.position) or Position(self.epoch)
        if any(isinstance(each, Track) and self._waits_for(each) for each in others):
            assert self._last is not None
            position = self._last.whole
        kept = {} if self._drawn is None else self._drawn.state(begun=self._begun)
        return {**position.state(self._facts()), **kept}

    @property
    def at_end(self) -> bool:
        """Whether all of a pass is handed out, and its end has not been met."""
        return self._start is None and self._last is not None and self._last.at_end

    def ended_within(self, other: Track) -> bool:
        """Whether its pass has ended within one of `other`, and none has begun since: the loop may
        go on with copies of its batches, as `itertools.cycle` does."""
        last, theirs = self._last, other._last
        if not self._rests or theirs is None or other._start is not None:
            return False
        assert last is not None
        return not (theirs.over or theirs.cut) and theirs.began < last.over

    @property
    def _rests(self) -> bool:
        """Whether its last pass is over, and the next one is not asked for."""
        over = self._last is not None and self._last.over
        return bool(over) and self._start is None and not self._begun

    @property
    def at_rest(self) -> bool:
        """Whether it stands between two passes, all of the last one read to its end."""
        return self._last is None or self._rests

    def _waits_for(self, other: Track) -> bool:
        """Whether a loop that goes through one loader after the other is in `other` now: what goes
        on goes through both again, and this one has nothing left."""
        if not self._rests:
            return False
        last, theirs = self._last, other._last
        assert last is not None
        if other._start is not None or other._begun:
            epoch = (other._start or Position(other.epoch)).epoch
        elif theirs is None or theirs.over or theirs.cut or theirs.began < last.over:
            return False
        else:
            epoch = theirs.position.epoch
        return epoch == last.whole.epoch

    @property
    def cut(self) -> bool:
        """Whether the loop over the last pass was left in its midst."""
        return self._start is None and self._last is not None and self._last.cut

    def load(self, state: Mapping[str, Any]) -> None:
        self._start = Position.of(state, self._facts())
        if self._drawn is not None:
            self._drawn.load(state)
        self._last, self._begun = None, False
        self.epoch = self._start.epoch


@final
class Pass:
    """One iteration over a loader.

    track: whose epoch it counts as one of; None where it counts for nothing. trains: whether it
    yields shares to train on. position: before the batch that comes next. length: in batches,
    where it is known. cut: whether its iterator is gone, and had batches left. began, over: when,
    among all passes; 0 where it has not. whole: where it stood as it ended.
    """

    def __init__(
        self, track: Track | None, start: Position, *, trains: bool, length: int = 0
    ) -> None:
        self.length = length
        self.trains = trains
        self.position = start
        self.whole = start
        self.cut = False
        self.began = self.over = 0
        self._whole = start.batches + length if length else None
        self._track = track
        self._first = 1 if start.batches else 2
        self._asked = 0
        self._drawn: deque[tuple[Share, int]] = deque()

    @property
    def at_end(self) -> bool:
        """Whether no batch is left, where that is known."""
        return self.position.batches == self._whole

    def ask(self) -> None:
        """A batch is asked for. With the second one the epoch counts: whoever only looks at a
        first batch does not change the order of what follows. One that goes on counts at once."""
        if self.trains and self._track is not None and self._track.between is not None:
            self._track.between()
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
            if self.trains and self._track is not None:
                self._track.handed += 1
                tracked.handed.samples += share.total
            self.position = self.position.after(share.total, digest)
        return share

    def ended(self) -> None:
        """The epoch is over: what comes next is another."""
        self.over, self.whole = next(_moments), self.position
        self.position = Position(epoch=self.position.epoch + 1)

    def left(self) -> None:
        """Its iterator is gone. One that was not asked whether anything is left, as by a zip that
        ended with another loader, has ended all the same where nothing is."""
        if self.over or not self._asked:
            return
        if self.at_end:
            self.ended()
        else:
            self.cut = True
