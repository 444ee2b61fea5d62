"""A server: it owns a shard of the parameters, and steps them as gradients come."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NoReturn, final

from dream import cluster
from dream._errors import DreamError, WorkerFailed
from dream._plain import Garbled
from dream.parameter_server.coordinator import Coordinator
from dream.parameter_server.job import ServerJob, end_process
from dream.parameter_server.optimizer import ServerOptimizer
from dream.parameter_server.protocol import (
    Frame,
    FrameChannel,
    FrameKind,
    Purpose,
    connect,
    listen,
    pack_error,
    refuse_garbled,
)
from dream.parameter_server.sessions import FRESH, RequestHandler, Session, Sessions
from dream.parameter_server.shard_state import ShardState

if TYPE_CHECKING:
    from numpy.typing import NDArray

SILENT_SECONDS = 10.0
"""A worker that has not been heard of for so long is taken for dead, or for the stall time where
that is shorter."""


def serve(job: ServerJob, optimizer: ServerOptimizer) -> NoReturn:
    """Serve to the end of training, and of this process: nothing of the script runs after it."""
    Server(job, optimizer).serve()
    end_process()


@final
class Server:
    """Serves from threads, one for each worker, until all have finished."""

    def __init__(self, job: ServerJob, optimizer: ServerOptimizer) -> None:
        self._place, self._roles = job.place, job.roles
        first = job.place.rank == job.roles.coordinator
        self._coordinator = Coordinator(job.roles.workers, job.bound) if first else None
        self._sessions = Sessions(self._coordinator)
        shard = ShardState(optimizer, job, self._coordinator)
        self._requests = RequestHandler(self._sessions, shard, self._coordinator, job.parts)
        self._watchers: list[FrameChannel] = []

    def serve(self) -> None:
        """Serve to the end of training. Raises what went wrong."""
        door = listen(self._place, self._welcome)
        try:
            if self._coordinator is None:
                self._follow()
            else:
                ranks = ",".join(map(str, self._roles.working))
                cluster.post(self._place, "roles/workers", ranks.encode())
                self._preside(self._coordinator)
        finally:
            door.close()
        if self._sessions.failure is not None:
            raise self._sessions.failure

    def _follow(self) -> None:
        """Serve until the coordinating server says that all is done."""
        first = connect(self._place, self._roles.coordinator, "watch", cluster.stall_seconds())
        first.settimeout(None)
        try:
            first.receive()
            first.close()
        except OSError as error:
            raise WorkerFailed(
                f"The server of rank {self._roles.coordinator} is gone. Received by the server of "
                f"rank {self._place.rank}: its connection closed. See that rank's own error "
                "message.",
                rank=self._roles.coordinator,
            ) from error

    def _preside(self, coordinator: Coordinator) -> None:
        """Watch the workers until all have finished."""
        # well before a worker that waits for a share of the silent one's work gives up itself
        silent = min(SILENT_SECONDS, cluster.stall_seconds() / 2)
        sessions = self._sessions
        began = came = time.monotonic()
        with sessions.changed:
            while sessions.failure is None:
                now = time.monotonic()
                late = now - began > cluster.startup_seconds()
                sessions.clock.over()
                sessions.lose_the_silent(silent)
                if sessions:
                    came = now
                elif sessions.finished and (sessions.seen.issuperset(self._roles.working) or late):
                    break
                elif now - came > cluster.startup_seconds():
                    raise WorkerFailed(
                        "All workers are lost, and none came back within "
                        f"{cluster.startup_seconds():g} s. Received so far: "
                        f"{coordinator.staleness()}. See the workers' own error messages."
                    )
                if late:
                    for worker in self._roles.working:
                        coordinator.never_came(worker)
                sessions.changed.wait(min(0.5, silent / 4))
            lost = set(self._roles.working) - sessions.finished
        cluster.leave_word(self._place, "roles/lost", ",".join(map(str, sorted(lost))).encode())
        for watcher in self._watchers:
            watcher.send(Frame(FrameKind.BYE))
            watcher.close()

    def _welcome(self, rank: int, purpose: Purpose, channel: FrameChannel) -> None:
        if purpose == "watch":
            self._watchers.append(channel)
        elif rank not in self._roles.working:
            channel.close()
        elif purpose == "beat":
            self._listen_for_beats(rank, channel)
        else:
            self._host(rank, channel)

    def _listen_for_beats(self, rank: int, channel: FrameChannel) -> None:
        try:
            while channel.receive():
                self._sessions.heard_of(rank)
        except (OSError, Garbled):
            channel.close()

    def _host(self, rank: int, channel: FrameChannel) -> None:
        sessions = self._sessions
        with sessions.changed:
            session = sessions.add(rank, channel)
        try:
            self._converse(session)
        except OSError:
            with sessions.changed:
                sessions.lose(session, "its connection closed")
        except Garbled as error:
            with sessions.changed:
                sessions.lose(session, f"what it sent cannot be read ({error})")
        except BaseException as error:
            with sessions.changed:
                sessions.fail(error)
            channel.close()

    def _converse(self, session: Session) -> None:
        import numpy as np

        buffer: NDArray[Any] = np.empty(0, np.uint8)
        while True:
            frame = session.channel.receive()
            if not self._requests.expects(session, frame):
                refuse_garbled(f"a frame that {frame.size} bytes follow")
            if frame.kind == FrameKind.REGISTER:
                data = np.frombuffer(session.channel.receive_long(frame.size), np.uint8)
            else:
                if frame.size > buffer.nbytes:
                    buffer = np.empty(frame.size, np.uint8)
                data = buffer[: frame.size]
                session.channel.receive_into(data.data)
            session.heard = self._sessions.clock.passed
            if frame.kind == FrameKind.BYE:
                session.finished = True
                with self._sessions.changed:
                    self._sessions.lose(session, "")
                return
            answer = self._answer(session, frame, data)
            if answer is not None:
                session.channel.send(answer, session.outgoing if answer.numbers[FRESH] else None)

    def _answer(self, session: Session, frame: Frame, data: NDArray[Any]) -> Frame | None:
        try:
            with self._sessions.changed:
                self._sessions.check(session)
                return self._requests.answer(session, frame, data)
        except DreamError as error:
            return Frame(FrameKind.ERROR, text=pack_error(error))
