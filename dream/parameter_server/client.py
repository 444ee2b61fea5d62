"""A worker's connections: it asks the servers for leases and parameters, and brings gradients."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from dream import cluster
from dream._errors import DreamError
from dream.parameter_server.job import ServerJob
from dream.parameter_server.leases import Epoch, Lease
from dream.parameter_server.optimizer import Shard
from dream.parameter_server.protocol import (
    EpochKey,
    Frame,
    FrameChannel,
    FrameKind,
    PushWords,
    Registration,
    ReturnedLeases,
    connect,
    refuse_garbled,
    server_gone,
    unpack_error,
    wait_for_answer,
)
from dream.parameter_server.staleness import Staleness

if TYPE_CHECKING:
    from numpy.typing import NDArray

BEAT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answers to a push or a pull.

    ended: whether the epoch is done by all; fresh: whether the parameters have changed.
    """

    lease: Lease | None
    ended: bool
    fresh: bool
    loss: float


@final
class Client:
    """A worker's connections to all servers, of which the first coordinates, and the heartbeat that
    tells that it is there. For one thread. version: updates that are in the values; -1 before there
    are any values."""

    def __init__(self, job: ServerJob) -> None:
        self._job = job
        self._shards: list[Shard] = []
        self._untrained = b""
        self._settings = b""
        self._channels: list[FrameChannel] = []
        self._left = threading.Event()
        self.version = -1
        self._values: NDArray[Any]
        self._gradient: NDArray[Any]
        self._connect()
        threading.Thread(target=self._beat, name="dream-beat", daemon=True).start()

    def register(
        self,
        shards: list[Shard],
        values: NDArray[Any],
        gradient: NDArray[Any],
        settings: bytes,
        untrained: bytes,
    ) -> bytes:
        """Tell the servers what the optimizer is over; afterwards `values` holds the parameters
        that start: rank 0's, or where training has got to. settings: what the shards' specs have;
        untrained: whatever else of a model must start alike; rank 0's is returned."""
        self._shards, self._values, self._gradient = shards, values, gradient
        self._settings, self._untrained = settings, untrained
        return self._introduce()

    def ask(self, key: EpochKey, epoch: Epoch, *, wait: bool) -> Answer:
        """Ask for the next lease of an epoch. wait: until there is one, or the epoch is done by
        all."""
        numbers = (*key, self.version, int(wait), epoch.samples, epoch.batch_size)
        frame = Frame(FrameKind.ASK, numbers, (float(epoch.drop_last), float(epoch.mark)))

        def call() -> Frame:
            self._channels[0].send(frame)
            return self._answer(0)

        return self._steadily(key, call, again=True)

    def push(
        self,
        leases: list[Lease],
        loss: float,
        weight: float,
        settings: bytes,
        present: Sequence[bytes],
        *,
        wants: bool,
    ) -> Answer:
        """Bring a step's gradient. The answer comes once the worker may go on.

        leases: what it is of, the last of which is the batch itself; loss: the mean over `weight`
        things; settings: hyper-parameters, which travel where they have changed; present: each
        server's part; wants: whether to answer with the next lease.
        """
        changed = None if settings == self._settings else settings
        self._settings = settings
        last = leases[-1]
        also = tuple(lease.number for lease in leases[:-1])
        numbers = (*last.key, last.number, self.version, last.parts, int(wants))

        def call() -> Frame:
            for server in reversed(range(len(self._shards))):  # the coordinator knows last
                shard = self._shards[server]
                text = PushWords(also, changed, present[server]).packed()
                frame = Frame(FrameKind.PUSH, numbers, (loss, weight), text)
                part = self._gradient[shard.start : shard.stop]
                self._channels[server].send(frame, part.data.cast("B"))
            return self._answer(0)

        return self._steadily(last.key, call, again=False)

    def settle(self, leases: list[Lease]) -> None:
        """Give leases back that brought no gradient: the loop made no step of them."""
        self._return(FrameKind.SETTLE, leases)

    def release(self, leases: list[Lease]) -> None:
        """Give leases back for others: the loop broke off."""
        self._return(FrameKind.RELEASE, leases)

    def refresh(self) -> bool:
        """Take the newest parameters; whether they have changed."""
        before = self.version
        self._pull(0, 0)
        return self.version != before

    def staleness(self) -> Staleness:
        self._channels[0].send(Frame(FrameKind.REPORT))
        return Staleness.of_json(json.loads(self._answer(0).text))

    def optimizer_state(self) -> list[bytes]:
        """Return what each server's `ServerOptimizer.save` gives."""
        for channel in self._channels:
            channel.send(Frame(FrameKind.STATE))
        return [self._answer(server).text for server in range(len(self._channels))]

    def leave(self) -> None:
        """Tell the servers that this worker has finished. Idempotent."""
        if self._left.is_set():
            return
        self._left.set()
        for channel in self._channels:
            with contextlib.suppress(OSError):
                channel.send(Frame(FrameKind.BYE))
            channel.close()

    def _connect(self) -> None:
        """Connect to all servers, anew where there were connections."""
        for channel in self._channels:
            channel.close()
        seconds = cluster.stall_seconds()
        place, servers = self._job.place, self._job.roles.serving
        self._channels = [connect(place, server, "work", seconds) for server in servers]

    def _beat(self) -> None:
        """Tell the coordinator that this process is alive, from a thread of its own."""
        while not self._left.is_set():
            with contextlib.suppress(OSError, DreamError):
                coordinator = self._job.roles.coordinator
                channel = connect(self._job.place, coordinator, "beat", BEAT_SECONDS)
                try:
                    while not self._left.wait(BEAT_SECONDS):
                        channel.send(Frame(FrameKind.BEAT))
                finally:
                    channel.close()
            self._left.wait(BEAT_SECONDS)

    def _answer(self, server: int) -> Frame:
        """Wait for a server's next answer, less its buffer. An error is raised as it was there."""
        frame = wait_for_answer(self._job.roles.serving[server], self._channels[server])
        if frame.kind == FrameKind.ERROR:
            raise unpack_error(frame.text)
        return frame

    def _introduce(self) -> bytes:
        first = self._job.place.rank == 0
        for server, shard in enumerate(self._shards):
            mine = self._values[shard.start : shard.stop]
            untrained = self._untrained if first and not server else b""
            said = Registration(shard.layout, self._values.dtype.str, shard.spec, untrained)
            data = mine.data.cast("B") if first else None
            self._channels[server].send(Frame(FrameKind.REGISTER, text=said.packed()), data)
        told = b""
        for server in range(len(self._shards)):
            frame = self._answer(server)
            self._take_values(server, frame)
            told += frame.text
        return told

    def _steadily(self, key: EpochKey, call: Callable[[], Frame], *, again: bool) -> Answer:
        """Make a request. A worker that the servers gave up, since it stood still, comes back once;
        what it held has been dealt again. again: whether it then repeats the request."""
        frame: Frame | None = None
        try:
            frame = call()
        except OSError:
            self._come_back()
            frame = call() if again else None
        if frame is None:
            return Answer(None, ended=False, fresh=True, loss=0.0)
        number, ended, version, parts, has_values, _ = frame.numbers
        fresh = bool(has_values) and bool(self._shards)
        if fresh:
            changed = version != self.version
            self._take_values(0, frame)
            if changed and len(self._shards) > 1:
                # in step, the other shards after the update that the coordinator's is of
                self._pull(1, self.version if self._job.in_step else 0)
        index, part = divmod(number, self._job.parts)
        lease = None if number < 0 else Lease(key, number, index, part, parts)
        return Answer(lease, bool(ended), fresh, frame.reals[0])

    def _come_back(self) -> None:
        self._connect()
        self._settings = b""  # the servers have forgotten what this worker's were
        try:
            self._introduce()
        except OSError as error:
            raise server_gone(self._job.roles.coordinator) from error

    def _pull(self, first: int, version: int) -> None:
        """Take the parameters of the servers from this one on, of this version or later."""
        servers = range(first, len(self._shards))
        for server in servers:
            self._channels[server].send(Frame(FrameKind.PULL, (version, 0, 0, 0, 0, 0)))
        for server in servers:
            self._take_values(server, self._answer(server))

    def _take_values(self, server: int, frame: Frame) -> None:
        if frame.size:
            shard = self._shards[server]
            view = self._values[shard.start : shard.stop].data.cast("B")
            if frame.size != view.nbytes:
                refuse_garbled(f"{view.nbytes} bytes of parameters")
            self._channels[server].receive_into(view)
        if server == 0:
            self.version = frame.numbers[2]

    def _return(self, kind: FrameKind, leases: list[Lease]) -> None:
        if leases and not self._left.is_set():
            said = ReturnedLeases(leases[0].key, tuple(lease.number for lease in leases))
            try:
                self._channels[0].send(Frame(kind, text=said.packed()))
            except OSError:
                return  # given up: they have been dealt again
