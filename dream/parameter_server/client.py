"""A worker's side: it asks the servers for batches and parameters, and brings them gradients."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, final

from dream import cluster
from dream._errors import WorkerFailed
from dream._topology import Cluster
from dream.parameter_server.coordinator import Key
from dream.parameter_server.deals import Epoch
from dream.parameter_server.door import gone
from dream.parameter_server.frames import Frame, Kind
from dream.parameter_server.lines import Lines
from dream.parameter_server.messages import Answer, Lease, Push, Shard
from dream.parameter_server.roles import Roles
from dream.parameter_server.staleness import Staleness
from dream.parameter_server.words import Pushed, Registration, Returned, garbled

if TYPE_CHECKING:
    from numpy.typing import NDArray


@final
class Client:
    """Connections to all servers. The parameters come into `values`, gradients go out of
    `gradient`, both flat and of the shape (n,). For one thread."""

    def __init__(self, place: Cluster, roles: Roles, *, in_step: bool) -> None:
        self._place, self._roles = place, roles
        self._in_step = in_step
        self._split = roles.workers if in_step else 1
        self._pulled = -1
        self._shards: list[Shard] = []
        self._rest = b""
        self._lines = Lines(place, roles)
        self.values: NDArray[Any]
        self.gradient: NDArray[Any]

    @property
    def version(self) -> int:
        """Updates that are in `values`; -1 before there are any values."""
        return self._pulled

    @classmethod
    def join(cls, place: Cluster, roles: Roles, *, in_step: bool) -> Client | None:
        """The client of a worker; None where the others have finished without it."""
        try:
            return cls(place, roles, in_step=in_step)
        except WorkerFailed:
            if cluster.found(place, "roles/lost") is None:
                raise
            return None

    # ---- requests

    def register(self, shards: list[Shard], values: NDArray[Any], rest: bytes) -> bytes:
        """Tell the servers what the optimizer is over; afterwards `values` holds the parameters
        that start: rank 0's, or where training has got to. rest: whatever else of a model must
        start alike; rank 0's is returned."""
        import numpy as np

        self._shards, self.values, self._rest = shards, values, rest
        self.gradient = np.zeros_like(values)
        return self._introduce()

    def ask(self, key: Key, epoch: Epoch, *, wait: bool) -> Answer:
        """The next lease of an epoch. wait: until there is one, or the epoch is done by all."""
        numbers = (*key, self._pulled, int(wait), epoch.samples, epoch.batch_size)
        frame = Frame(Kind.ASK, numbers, (float(epoch.drop_last), float(epoch.mark)))
        return self._steadily(key, lambda: self._lines.call(frame), again=frame)

    def push(self, push: Push) -> Answer:
        """A step's gradient, out of `gradient`. The answer comes once the worker may go on."""
        last = push.leases[-1]
        also = tuple(lease.number for lease in push.leases[:-1])
        numbers = (*last.key, last.number, self._pulled, last.parts, int(push.wants))

        def call() -> Frame:
            for server in reversed(range(len(self._shards))):  # the coordinator knows last
                shard = self._shards[server]
                text = Pushed(also, push.settings, push.present[server]).packed()
                frame = Frame(Kind.PUSH, numbers, (push.loss, push.weight), text)
                part = self.gradient[shard.start : shard.stop]
                self._lines.send(server, frame, part.data.cast("B"))
            return self._lines.hear(0)

        return self._steadily(last.key, call, again=None)

    def settle(self, leases: list[Lease]) -> None:
        """These brought no gradient: the loop made no step of them."""
        self._return(Kind.SETTLE, leases)

    def release(self, leases: list[Lease]) -> None:
        """These are for others: the loop broke off."""
        self._return(Kind.RELEASE, leases)

    def refresh(self) -> bool:
        """Take the newest parameters; whether they have changed."""
        before = self._pulled
        for server in range(len(self._shards)):
            self._lines.send(server, Frame(Kind.PULL))
        for server in range(len(self._shards)):
            self._take_values(server, self._lines.hear(server))
        return self._pulled != before

    def staleness(self) -> Staleness:
        self._lines.send(0, Frame(Kind.REPORT))
        return Staleness.of_json(json.loads(self._lines.hear(0).text))

    def state(self) -> list[bytes]:
        """What each server's `Owner.save` gives."""
        for server in self._lines.servers:
            self._lines.send(server, Frame(Kind.STATE))
        return [self._lines.hear(server).text for server in self._lines.servers]

    def leave(self) -> None:
        """This worker has finished. Idempotent."""
        self._lines.leave()

    # ---- how

    def _introduce(self) -> bytes:
        first = self._place.rank == 0
        for server, shard in enumerate(self._shards):
            mine = self.values[shard.start : shard.stop]
            rest = self._rest if first and not server else b""
            said = Registration(shard.layout, self.values.dtype.str, shard.recipe, rest)
            data = mine.data.cast("B") if first else None
            self._lines.send(server, Frame(Kind.REGISTER, text=said.packed()), data)
        told = b""
        for server in range(len(self._shards)):
            frame = self._lines.hear(server)
            self._take_values(server, frame)
            told += frame.text
        return told

    def _steadily(self, key: Key, call: Any, *, again: Frame | None) -> Answer:
        """The answer to a request. A worker that the servers gave up, since it stood still, comes
        back once; what it held has been dealt again."""
        frame: Frame | None
        try:
            frame, lost = call(), False
        except OSError:
            frame, lost = None, True
        if lost:
            self._come_back()
            frame = None if again is None else self._lines.call(again)
        if frame is None:
            return Answer(None, ended=False, fresh=True, loss=0.0)
        lease, ended, version, parts, has_values, _ = frame.numbers
        fresh = bool(has_values) and bool(self._shards)
        if fresh:
            changed = version != self._pulled
            self._take_values(0, frame)
            if changed and len(self._shards) > 1:
                self._pull_others()
        index, part = divmod(lease, self._split)
        granted = None if lease < 0 else Lease(key, lease, index, part, parts)
        return Answer(granted, bool(ended), fresh, frame.reals[0])

    def _come_back(self) -> None:
        self._lines.connect()
        try:
            self._introduce()
        except OSError as error:
            raise gone(self._roles.coordinator) from error

    def _pull_others(self) -> None:
        """The other shards; in step, after the update that the coordinator's is of."""
        wanted = self._pulled if self._in_step else 0
        for server in range(1, len(self._shards)):
            self._lines.send(server, Frame(Kind.PULL, (wanted, 0, 0, 0, 0, 0)))
        for server in range(1, len(self._shards)):
            self._take_values(server, self._lines.hear(server))

    def _take_values(self, server: int, frame: Frame) -> None:
        if frame.size:
            shard = self._shards[server]
            view = self.values[shard.start : shard.stop].data.cast("B")
            if frame.size != view.nbytes:
                garbled(f"{view.nbytes} bytes of parameters")
            self._lines.receive_into(server, view)
        if server == 0:
            self._pulled = frame.numbers[2]

    def _return(self, kind: Kind, leases: list[Lease]) -> None:
        if leases and not self._lines.closed:
            said = Returned(leases[0].key, tuple(lease.number for lease in leases))
            try:
                self._lines.send(0, Frame(kind, text=said.packed()))
            except OSError:
                return  # given up: they have been dealt again
