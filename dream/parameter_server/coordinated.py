"""TensorFlow's own parameter servers, as far as no framework is needed: a chief, which runs the
script and hands out steps, workers, which do them, and servers, which hold the parameters.

Workers and servers stay until the chief dismisses them; each knows by its connection to the chief
whether that still lives, and the chief by the same who of them does.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self, final

from dream import cluster
from dream._errors import ConfigurationError, Unsupported, WorkerFailed
from dream._topology import Cluster, Endpoint
from dream.parameter_server.job import end_process, listed

_DOOR = "chief"
_DISMISSED = b"."
_OWN_ONLY = ("staleness", "snapshot_every")


@dataclass(frozen=True, slots=True)
class Tasks:
    """Rank 0 is the chief, the next ones work, the last ones serve: the order of TF_CONFIG."""

    place: Cluster
    workers: int
    servers: int

    @classmethod
    def of(cls, place: Cluster, options: Mapping[str, object]) -> Self:
        """Share the ranks out by the strategy's options."""
        for name in _OWN_ONLY:
            if options[name] is not None:
                raise Unsupported(
                    "TensorFlow's parameter servers do not support this option. Received: "
                    f"{name}={options[name]!r} with engine='tensorflow'. Remove it, or remove "
                    "engine: dream's own servers take it."
                )
        workers, servers = options["workers"], options["servers"]
        assert workers is None or isinstance(workers, int)
        assert isinstance(servers, int)
        if place.servers not in (None, servers):
            raise ConfigurationError(
                "The cluster and the strategy disagree on the number of servers. Received: "
                f"servers={servers}, and {place.servers} of {place.world_size} tasks are servers "
                f"in {place.source}. Write servers={place.servers}."
            )
        found = cls(place, workers or max(1, place.world_size - 1 - servers), servers)
        if found.ranks != place.world_size:
            raise ConfigurationError(
                f"A chief, {_counted(found.workers, 'worker')} and {_counted(servers, 'server')} "
                f"are {found.ranks} ranks. Received: {_counted(place.world_size, 'rank')} from "
                f"{place.source}. Start them with `dream run -n {found.ranks} SCRIPT`."
            )
        return found

    @property
    def ranks(self) -> int:
        return 1 + self.workers + self.servers

    @property
    def working(self) -> range:
        return range(1, 1 + self.workers)

    @property
    def serving(self) -> range:
        return range(1 + self.workers, self.ranks)

    @property
    def own(self) -> tuple[str, int]:
        """This rank's task in TensorFlow's words: its kind, and its index among them."""
        return self._task(self.place.rank)

    def addresses(self, endpoints: Sequence[Endpoint]) -> dict[str, list[str]]:
        """Return where each kind of task listens. endpoints: in the order of ranks."""
        listed: dict[str, list[str]] = {"chief": [], "worker": [], "ps": []}
        for rank, endpoint in enumerate(endpoints):
            listed[self._task(rank)[0]].append(str(endpoint))
        return listed

    def server_lost(self, index: int) -> WorkerFailed:
        """Make the error for a server that is gone. index: its place among the servers."""
        rank = self.serving[index]
        return WorkerFailed(
            f"Server {index} is gone (rank {rank}), and the parameters it held are lost. Received: "
            "it no longer answers. See that rank's own error message, and start the job again from "
            "what the chief has saved.",
            rank=rank,
        )

    def _task(self, rank: int) -> tuple[str, int]:
        if rank == 0:
            return "chief", 0
        if rank in self.working:
            return "worker", self.working.index(rank)
        return "ps", self.serving.index(rank)

    def __str__(self) -> str:
        return (
            f"rank 0 is the chief, {listed(self.working)} "
            f"work{'s' * (self.workers == 1)}, {listed(self.serving)} "
            f"serve{'s' * (self.servers == 1)}"
        )


@final
class Attendance:
    """Who has come to the chief, and is still there."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._changed = threading.Condition()
        self._present: dict[int, socket.socket] = {}
        self._came: set[int] = set()
        self._over = False
        self._worked = time.monotonic()
        self._door = cluster.Door(tasks.place, _DOOR, self._welcome)

    def wait(self) -> None:
        """Return once all have come; WorkerFailed names those that did not."""
        everybody = {*self._tasks.working, *self._tasks.serving}
        seconds = cluster.startup_seconds()
        with self._changed:
            if self._changed.wait_for(lambda: self._came >= everybody, seconds):
                return
            missing = ", ".join(map(str, sorted(everybody - self._came)))
        raise WorkerFailed(
            f"Not every worker and server reached the chief within {seconds:g} s. Received: "
            f"nothing from rank {missing}. See those ranks' own error messages."
        )

    def check(self) -> None:
        """Raise WorkerFailed where a server is gone, or no worker has been there for as long as
        one may take to start."""
        seconds = cluster.startup_seconds()
        with self._changed:
            for index, rank in enumerate(self._tasks.serving):
                if rank not in self._present:
                    raise self._tasks.server_lost(index)
            if any(rank in self._present for rank in self._tasks.working):
                self._worked = time.monotonic()
            elif time.monotonic() - self._worked > seconds:
                raise WorkerFailed(
                    f"All workers are lost, and none came back within {seconds:g} s. Received: "
                    f"{listed(self._tasks.working)} gone. See the workers' own error messages."
                )

    def dismiss(self) -> None:
        """Send all home, once this process has ended: TensorFlow takes leave of them after all that
        Python does. Those who come later find that training is over."""
        with self._changed:
            if self._over:
                return
            self._over = True
            present = list(self._present.values())
        cluster.leave_word(self._tasks.place, "roles/lost", b"")
        for connection in present:
            with suppress(OSError):
                connection.sendall(_DISMISSED)
                connection.detach()  # closed by the system, at the very end
        self._door.close()

    def _welcome(self, rank: int, purpose: str, connection: socket.socket) -> None:
        if rank not in range(1, self._tasks.ranks) or purpose != "attend":
            connection.close()
            return
        threading.Thread(target=self._see, args=[rank, connection], daemon=True).start()

    def _see(self, rank: int, connection: socket.socket) -> None:
        connection.settimeout(None)
        with self._changed:
            self._present[rank] = connection
            self._came.add(rank)
            self._changed.notify_all()
        with suppress(OSError):
            connection.recv(1)
        with self._changed:
            if self._present.get(rank) is connection:
                del self._present[rank]
                self._worked = time.monotonic()
            self._changed.notify_all()


def attend(tasks: Tasks) -> None:
    """Stay, as a worker or a server, until the chief dismisses this rank. Ends this process where
    it comes after the end of training; WorkerFailed where the chief is gone."""
    place = tasks.place
    said = b""
    with suppress(OSError):
        chief = cluster.knock(place, _DOOR, 0, "attend", cluster.startup_seconds())
        chief.settimeout(None)
        said = chief.recv(1)
        chief.recv(1)  # to its very end
    if said == _DISMISSED or cluster.found(place, "roles/lost") is not None:
        end_process()
    raise WorkerFailed(
        f"The chief is gone (rank 0). Received by rank {place.rank}: its connection closed. See "
        "rank 0's own error message.",
        rank=0,
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
