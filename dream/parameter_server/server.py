"""A server: it owns a shard of the parameters, and steps them as gradients come."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, final

from dream import cluster
from dream._errors import DreamError, WorkerFailed
from dream._plain import Garbled
from dream._topology import Cluster
from dream.parameter_server.answers import FRESH, Answers
from dream.parameter_server.coordinator import Coordinator
from dream.parameter_server.door import Door, Purpose, knock
from dream.parameter_server.frames import Channel, Frame, Kind
from dream.parameter_server.guests import Guest, Guests
from dream.parameter_server.holding import Holding, Rules
from dream.parameter_server.owner import Owner
from dream.parameter_server.roles import Roles
from dream.parameter_server.words import garbled, packed_error

if TYPE_CHECKING:
    from numpy.typing import NDArray

SILENT_SECONDS = 10.0
"""A worker that has not been heard of for so long is taken for dead, or for the stall time where
that is shorter."""


@final
class Server:
    """Serves from threads, one for each worker, until all have finished."""

    def __init__(self, place: Cluster, roles: Roles, rules: Rules, owner: Owner) -> None:
        self._place, self._roles = place, roles
        first = place.rank == roles.coordinator
        self._coordinator = Coordinator(roles.workers, rules.bound) if first else None
        self._guests = Guests(self._coordinator)
        index = place.rank - roles.workers
        holding = Holding(owner, rules, index, roles.servers, self._coordinator)
        split = roles.workers if rules.bound == 0 else 1
        self._answers = Answers(self._guests, holding, self._coordinator, split)
        self._watchers: list[Channel] = []

    def serve(self) -> None:
        """To the end of training. Raises what went wrong."""
        door = Door(self._place, range(self._place.world_size), self._welcome)
        try:
            if self._coordinator is None:
                self._follow()
            else:
                ranks = ",".join(map(str, self._roles.working))
                cluster.post(self._place, "roles/workers", ranks.encode())
                self._preside(self._coordinator)
        finally:
            door.close()
        if self._guests.failure is not None:
            raise self._guests.failure

    def _follow(self) -> None:
        """Serve until the coordinating server says that all is done."""
        first = knock(self._place, self._roles.coordinator, "watch", cluster.stall_seconds())
        first.settimeout(None)
        try:
            first.receive()
            first.close()
        except OSError as error:
            raise WorkerFailed(
                f"The server of rank {self._roles.coordinator} is gone. Received by the server of "
                f"rank {self._place.rank}: its connection closed. Look at that rank's own message.",
                rank=self._roles.coordinator,
            ) from error

    def _preside(self, coordinator: Coordinator) -> None:
        """Watch the workers until all have finished."""
        silent = min(SILENT_SECONDS, cluster.stall_seconds())
        guests = self._guests
        began = came = time.monotonic()
        with guests.changed:
            while guests.failure is None:
                now = time.monotonic()
                late = now - began > cluster.startup_seconds()
                guests.clock.over()
                guests.lose_the_silent(silent)
                if guests:
                    came = now
                elif guests.finished and (guests.seen.issuperset(self._roles.working) or late):
                    break
                elif now - came > cluster.startup_seconds():
                    raise _nobody(coordinator)
                if late:
                    for worker in self._roles.working:
                        coordinator.never_came(worker)
                guests.changed.wait(min(0.5, silent / 4))
            lost = set(self._roles.working) - guests.finished
        cluster.leave_word(self._place, "roles/lost", ",".join(map(str, sorted(lost))).encode())
        for watcher in self._watchers:
            watcher.send(Frame(Kind.BYE))
            watcher.close()

    def _welcome(self, rank: int, purpose: Purpose, channel: Channel) -> None:
        if purpose == "watch":
            self._watchers.append(channel)
        elif rank not in self._roles.working:
            channel.close()
        elif purpose == "beat":
            self._listen_for_beats(rank, channel)
        else:
            self._host(rank, channel)

    def _listen_for_beats(self, rank: int, channel: Channel) -> None:
        try:
            while channel.receive():
                self._guests.heard_of(rank)
        except (OSError, Garbled):
            channel.close()

    def _host(self, rank: int, channel: Channel) -> None:
        guests = self._guests
        with guests.changed:
            guest = guests.add(rank, channel)
        try:
            self._converse(guest)
        except OSError:
            with guests.changed:
                guests.lose(guest, "its connection closed")
        except Garbled as error:
            with guests.changed:
                guests.lose(guest, f"what it sent cannot be read ({error})")
        except BaseException as error:
            with guests.changed:
                guests.fail(error)
            channel.close()

    def _converse(self, guest: Guest) -> None:
        import numpy as np

        buffer: NDArray[Any] = np.empty(0, np.uint8)
        while True:
            frame = guest.channel.receive()
            if not self._answers.expects(guest, frame):
                garbled(f"a frame that {frame.size} bytes follow")
            if frame.kind == Kind.REGISTER:
                data = np.frombuffer(guest.channel.receive_long(frame.size), np.uint8)
            else:
                if frame.size > buffer.nbytes:
                    buffer = np.empty(frame.size, np.uint8)
                data = buffer[: frame.size]
                guest.channel.receive_into(data.data)
            guest.heard = self._guests.clock.passed
            if frame.kind == Kind.BYE:
                guest.finished = True
                with self._guests.changed:
                    self._guests.lose(guest, "")
                return
            answer = self._answer(guest, frame, data)
            if answer is not None:
                guest.channel.send(answer, guest.outgoing if answer.numbers[FRESH] else None)

    def _answer(self, guest: Guest, frame: Frame, data: NDArray[Any]) -> Frame | None:
        try:
            with self._guests.changed:
                self._guests.check(guest)
                return self._answers.to(guest, frame, data)
        except DreamError as error:
            return Frame(Kind.ERROR, text=packed_error(error))


def _nobody(coordinator: Coordinator) -> WorkerFailed:
    return WorkerFailed(
        "No worker is left, and none came back within "
        f"{cluster.startup_seconds():g} s. Received so far: {coordinator.staleness()}. Look at the "
        "workers' own messages."
    )
