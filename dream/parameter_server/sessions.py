"""A server's workers: they come, ask, are answered, and go. All under the server's one lock."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

from dream import stall
from dream._errors import Desynchronized
from dream._log import logger
from dream.parameter_server.coordinator import Coordinator
from dream.parameter_server.leases import Epoch
from dream.parameter_server.protocol import (
    EpochKey,
    Frame,
    FrameChannel,
    FrameKind,
    PushWords,
    Registration,
    ReturnedLeases,
    refuse_garbled,
)
from dream.parameter_server.shard_state import BatchGradient, GradientParts, ShardState

if TYPE_CHECKING:
    from numpy.typing import NDArray

WAIT_SECONDS = 1.0
"""How often a worker that is kept waiting is told so."""
FRESH = 4
"""Which number of an answer says whether parameters follow."""


@dataclass(slots=True)
class Session:
    """A worker as the server sees it. heard: when, by the server's clock; paused: whether it is
    kept waiting; outgoing: what parameters are copied to before they are sent;
    settings: its hyper-parameters, where it sent any."""

    rank: int
    channel: FrameChannel
    heard: float
    outgoing: memoryview | None = None
    settings: Any = None
    registered: bool = False
    paused: bool = False
    finished: bool = False


@final
class Sessions:
    """The workers of a server: who came, who has finished, what failed.

    changed: the server's one lock, notified of whatever a worker may wait for; all methods but
    `heard_of` are called with it held. seen, finished: ranks that came, and that have finished.
    failure: what ends the server. clock: how long the server has been up, less the time in which
    it was itself stopped; who presides keeps it going.
    """

    def __init__(self, coordinator: Coordinator | None) -> None:
        self.changed = threading.Condition()
        self.seen: set[int] = set()
        self.finished: set[int] = set()
        self.failure: BaseException | None = None
        self.clock = stall.Patience(math.inf)
        self._coordinator = coordinator
        self._open: dict[int, Session] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, rank: int, channel: FrameChannel) -> Session:
        session = Session(rank, channel, self.clock.passed)
        before = self._open.get(rank)
        if before is not None:
            self.lose(before, "it came again")
        self._open[rank] = session
        self.seen.add(rank)
        if self._coordinator is not None:
            self._coordinator.join(rank)
        self.changed.notify_all()
        return session

    def heard_of(self, rank: int) -> None:
        session = self._open.get(rank)
        if session is not None:
            session.heard = self.clock.passed

    def lose_the_silent(self, seconds: float) -> None:
        """Give up those that have not been heard of for so long."""
        for session in list(self._open.values()):
            if self.clock.passed - session.heard > seconds:
                self.lose(session, f"it has not been heard of for {seconds:g} s")

    def lose(self, session: Session, why: str) -> None:
        """Close the session of a worker that has left, or is given up."""
        if self._open.get(session.rank) is not session:
            return
        del self._open[session.rank]
        session.channel.close()
        if self._coordinator is not None:
            self._count_out(session, why, self._coordinator)
        self.changed.notify_all()

    def _count_out(self, session: Session, why: str, coordinator: Coordinator) -> None:
        if session.finished:
            self.finished.add(session.rank)
        again = coordinator.leave(session.rank, lost=not session.finished)
        if not session.finished and self.failure is None:
            logger.warning(
                "worker of rank %d is lost: %s. Training continues with %s; %d samples are handed "
                "out again", session.rank, why, sorted(self._open) or "none yet", again,
            )  # fmt: skip

    def fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self.changed.notify_all()

    def check(self, session: Session) -> None:
        """Refuse what a worker says that was given up meanwhile."""
        if self.failure is not None or self._open.get(session.rank) is not session:
            raise ConnectionAbortedError("the worker was given up")

    def pause(self, session: Session) -> None:
        """Wait for a change, and keep the worker from thinking that nobody is there: it is told
        who is, and does not wait itself."""
        self.check(session)
        session.paused = True
        try:
            changed = self.changed.wait(WAIT_SECONDS)
        finally:
            session.paused = False
        if not changed:
            awaited = [rank for rank, other in sorted(self._open.items()) if not other.paused]
            awaited = [rank for rank in awaited if rank != session.rank]
            session.channel.send(Frame(FrameKind.WAIT, text=json.dumps(awaited).encode()))


@final
class RequestHandler:
    """Answers what workers ask of a server.

    parts: in how many a batch is dealt.
    """

    def __init__(
        self, sessions: Sessions, shard: ShardState, coordinator: Coordinator | None, parts: int
    ) -> None:
        self._sessions, self._shard = sessions, shard
        self._coordinator, self._parts = coordinator, parts
        self._waiting = GradientParts()

    def answer(self, session: Session, frame: Frame, data: NDArray[Any]) -> Frame | None:
        """Answer a frame; None where no answer is expected."""
        if frame.kind == FrameKind.PUSH:
            return self._push(session, frame, data)
        if frame.kind == FrameKind.PULL:
            while self._shard.version < frame.numbers[0]:
                self._sessions.pause(session)
            return self._with_values(session, since=-1)
        if frame.kind == FrameKind.REGISTER:
            return self._register(session, frame, data)
        if frame.kind == FrameKind.STATE:
            return Frame(FrameKind.ANSWER, text=self._shard.optimizer_state())
        if self._coordinator is None:
            refuse_garbled("a question to this server")
        if frame.kind == FrameKind.ASK:
            return self._ask(session, frame, self._coordinator)
        if frame.kind == FrameKind.REPORT:
            said = self._coordinator.staleness().to_json()
            return Frame(FrameKind.ANSWER, text=json.dumps(said).encode())
        if frame.kind not in (FrameKind.SETTLE, FrameKind.RELEASE):
            refuse_garbled("a kind of frame")
        self._return(session, frame, self._coordinator)
        return None

    def expects(self, session: Session, frame: Frame) -> bool:
        """Whether a frame may be followed by a buffer of the size that it says."""
        if frame.kind == FrameKind.REGISTER:
            return True
        pushed = frame.kind == FrameKind.PUSH and session.registered
        return frame.size == (self._shard.nbytes if pushed else 0)

    def _register(self, session: Session, frame: Frame, data: NDArray[Any]) -> Frame:
        """Compare the layout of a worker's optimizer. Rank 0's parameters are those that start;
        the others wait for it."""
        said = Registration.of(frame.text)
        shard = self._shard
        if shard.layout is None and session.rank == 0:
            if said.nbytes != data.nbytes:
                refuse_garbled(f"{said.nbytes} bytes of parameters")
            shard.begin(said, data.view(said.dtype).copy())
            self._sessions.changed.notify_all()
        while shard.layout is None:
            self._sessions.pause(session)
        if said.layout != shard.layout or said.dtype != shard.dtype:
            raise Desynchronized(
                f"The workers' models differ. Received: {_difference(said, shard)}. "
                "Build the same model, and the same optimizer over it, on every rank."
            )
        session.registered = True
        return replace(self._with_values(session, since=-1), text=shard.untrained)

    def _push(self, session: Session, frame: Frame, data: NDArray[Any]) -> Frame | None:
        loader, epoch, lease, pulled, parts, wants = frame.numbers
        shard, coordinator = self._shard, self._coordinator
        said = PushWords.of(frame.text, len(shard.layout or ()))
        key = loader, epoch
        if coordinator is not None and not coordinator.knows(key):
            refuse_garbled("a push of an epoch that was begun")
        if said.settings is not None:
            session.settings = shard.read_settings(said.settings)
        if coordinator is None or coordinator.holds(session.rank, key, lease):
            loss, weight = frame.reals
            came = BatchGradient(data.view(shard.dtype), said.present, weight, loss)
            if coordinator is not None:
                coordinator.settle(session.rank, key, [*said.also, lease], gradient=True)
            batch, part = divmod(lease, self._parts)
            whole = self._waiting.add((key, batch), part, parts, came)
            if whole is not None:
                shard.update(whole, session.settings, shard.version - pulled)
            self._sessions.changed.notify_all()
        if coordinator is None:
            return None
        batches = 1 + len(said.also)
        return self._grant(session, key, coordinator, since=-1, batches=batches, wants=bool(wants))

    def _ask(self, session: Session, frame: Frame, coordinator: Coordinator) -> Frame:
        loader, number, pulled, wait, samples, batch_size = frame.numbers
        key = loader, number
        drop_last, mark = frame.reals
        if samples < 0 or batch_size < 1:
            refuse_garbled("an epoch")
        rank = session.rank
        coordinator.begin(rank, key, Epoch(samples, batch_size, drop_last != 0.0, int(mark)))
        batches = coordinator.holding(rank, key) + 1 if wait else None
        return self._grant(
            session, key, coordinator, since=pulled, batches=batches, wants=True, wait=bool(wait)
        )

    def _grant(
        self,
        session: Session,
        key: EpochKey,
        coordinator: Coordinator,
        *,
        since: int,
        batches: int | None,
        wants: bool,
        wait: bool = False,
    ) -> Frame:
        """Answer with a lease, or none, once the worker may go on, as `Coordinator.grant` says."""
        while True:
            may, lease = coordinator.grant(session.rank, key, batches, wants=wants, wait=wait)
            if may:
                break
            self._sessions.pause(session)
        parts = coordinator.parts(key, lease) if lease is not None else 0
        ended = coordinator.finished(key)
        return self._with_values(session, -1 if lease is None else lease, ended, parts, since=since)

    def _return(self, session: Session, frame: Frame, coordinator: Coordinator) -> None:
        """Take back leases that brought no gradient, or will bring none."""
        said = ReturnedLeases.of(frame.text)
        if frame.kind == FrameKind.SETTLE:
            coordinator.settle(session.rank, said.key, said.leases, gradient=False)
        else:
            coordinator.release(session.rank, said.key, said.leases)
        self._sessions.changed.notify_all()

    def _with_values(
        self, session: Session, lease: int = -1, ended: bool = False, parts: int = 0, *, since: int
    ) -> Frame:
        """Make an answer that carries the parameters where they are newer than `since`: a copy,
        since they change while it is sent."""
        version = self._shard.version
        fresh = session.registered and version != since
        if fresh:
            session.outgoing = self._shard.copy_values(session.outgoing)
        numbers = (lease, int(ended), version, parts, int(fresh), 0)
        return Frame(FrameKind.ANSWER, numbers, (self._shard.loss, 0.0))


def _difference(said: Registration, shard: ShardState) -> str:
    """Say the first place in which two layouts differ."""
    theirs, ours = said.layout, shard.layout or ()
    if theirs == ours:
        return f"parameters of {said.dtype} here and of {shard.dtype} on rank 0"
    for index, (one, other) in enumerate(zip(theirs, ours, strict=False)):
        if one != other:
            return f"parameter {index} is {one} here and {other} on rank 0"
    return f"{len(theirs)} parameters here and {len(ours)} on rank 0"
