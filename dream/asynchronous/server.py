"""A server: it owns a shard of the parameters, and steps them as gradients come."""

from __future__ import annotations

import json
import pickle
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from dream import cluster
from dream._errors import Desynchronized, DreamError, WorkerFailed
from dream._log import logger
from dream._topology import Cluster

from .coordinator import Coordinator, Key
from .deals import Epoch
from .door import Door, Purpose, knock
from .frames import Channel, Frame, Kind
from .owner import Owner
from .parts import Part, Parts
from .roles import Roles
from .snapshots import Snapshots

if TYPE_CHECKING:
    from numpy.typing import NDArray

WAIT_SECONDS = 1.0
"""How often a worker that is kept waiting is told so."""
SILENT_SECONDS = 10.0
"""A worker that has not been heard of for so long is taken for dead, or for the stall time where
that is shorter."""


_FRESH = 4
"""Which number of an answer says whether parameters follow."""


@dataclass(frozen=True, slots=True)
class Rules:
    """bound: the `staleness=` option; every: updates between snapshots; folder: where they go."""

    bound: int | None
    every: int | None
    folder: Path | None


@dataclass(slots=True)
class Guest:
    """A worker as the server sees it. outgoing: what parameters are copied to before they are sent;
    settings: its hyper-parameters, where it sent any."""

    rank: int
    channel: Channel
    heard: float
    outgoing: memoryview | None = None
    settings: Any = None
    registered: bool = False
    finished: bool = False


@final
class Server:
    """Serves from threads, one for each worker, until all have finished."""

    def __init__(self, place: Cluster, roles: Roles, rules: Rules, owner: Owner) -> None:
        self._place, self._roles, self._rules, self._owner = place, roles, rules, owner
        first = place.rank == roles.coordinator
        self._coordinator = Coordinator(roles.workers, rules.bound) if first else None
        self._changed = threading.Condition()
        self._guests: dict[int, Guest] = {}
        self._seen: set[int] = set()
        self._finished: set[int] = set()
        self._watchers: list[Channel] = []
        self._parts = Parts()
        self._layout: Any = None
        self._recipe = self._rest = b""
        self._version = 0
        self._loss = 0.0
        self._failure: BaseException | None = None
        self._snapshots: Snapshots | None = None
        if rules.every is not None and rules.folder is not None:
            index = place.rank - roles.workers
            self._snapshots = Snapshots(rules.folder, index, roles.servers)
            self._resume(self._snapshots)

    def serve(self) -> None:
        """To the end of training. Raises what went wrong."""
        door = Door(self._place, self._welcome)
        try:
            if self._coordinator is None:
                self._follow()
            else:
                ranks = ",".join(map(str, self._roles.working))
                cluster.post(self._place, "roles/workers", ranks.encode())
                self._preside(self._coordinator)
        finally:
            door.close()
        if self._failure is not None:
            raise self._failure

    def _follow(self) -> None:
        """Serve until the coordinating server says that all is done."""
        first = knock(self._place, self._roles.coordinator, "watch", cluster.stall_seconds())
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
        began = came = time.monotonic()
        with self._changed:
            while self._failure is None:
                now = time.monotonic()
                late = now - began > cluster.startup_seconds()
                for guest in list(self._guests.values()):
                    if now - guest.heard > silent:
                        self._lose(guest, f"it has not been heard of for {silent:g} s")
                if self._guests:
                    came = now
                elif self._finished and (self._seen.issuperset(self._roles.working) or late):
                    break
                elif now - came > cluster.startup_seconds():
                    raise _nobody(coordinator)
                if late:
                    for worker in self._roles.working:
                        coordinator.never_came(worker)
                self._changed.wait(min(0.5, silent / 4))
            lost = set(self._roles.working) - self._finished
        cluster.post(self._place, "roles/lost", ",".join(map(str, sorted(lost))).encode())
        for watcher in self._watchers:
            watcher.send(Frame(Kind.BYE))
            watcher.close()

    # ---- workers come and go

    def _welcome(self, rank: int, purpose: Purpose, channel: Channel) -> None:
        if purpose == "watch":
            self._watchers.append(channel)
        elif purpose == "beat":
            self._listen_for_beats(rank, channel)
        else:
            self._host(rank, channel)

    def _listen_for_beats(self, rank: int, channel: Channel) -> None:
        try:
            while channel.receive():
                guest = self._guests.get(rank)
                if guest is not None:
                    guest.heard = time.monotonic()
        except OSError:
            channel.close()

    def _host(self, rank: int, channel: Channel) -> None:
        guest = Guest(rank, channel, time.monotonic())
        with self._changed:
            before = self._guests.get(rank)
            if before is not None:
                self._lose(before, "it came again")
            self._guests[rank] = guest
            self._seen.add(rank)
            if self._coordinator is not None:
                self._coordinator.join(rank)
            self._changed.notify_all()
        try:
            self._converse(guest)
        except OSError:
            with self._changed:
                self._lose(guest, "its connection closed")
        except BaseException as error:
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()
            channel.close()

    def _lose(self, guest: Guest, why: str) -> None:
        """A worker has left, or is given up. Called with the lock held."""
        if self._guests.get(guest.rank) is not guest:
            return
        del self._guests[guest.rank]
        guest.channel.close()
        if self._coordinator is not None:
            if guest.finished:
                self._finished.add(guest.rank)
            again = self._coordinator.leave(guest.rank, lost=not guest.finished)
            if not guest.finished and self._failure is None:
                logger.warning(
                    "worker of rank %d is lost: %s. Training goes on with %s; %d samples are dealt "
                    "again", guest.rank, why, sorted(self._guests) or "none yet", again,
                )  # fmt: skip
        self._changed.notify_all()

    # ---- what a worker asks for

    def _converse(self, guest: Guest) -> None:
        import numpy as np

        buffer: NDArray[Any] = np.empty(0, np.uint8)
        while True:
            frame = guest.channel.receive()
            if frame.size > buffer.nbytes:
                buffer = np.empty(frame.size, np.uint8)
            data = buffer[: frame.size]
            if frame.size:
                guest.channel.receive_into(data.data)
            guest.heard = time.monotonic()
            if frame.kind == Kind.BYE:
                guest.finished = True
                with self._changed:
                    self._lose(guest, "")
                return
            try:
                with self._changed:
                    self._check(guest)
                    answer = self._answer(guest, frame, data)
            except DreamError as error:
                answer = Frame(Kind.ERROR, text=pickle.dumps((type(error).__name__, str(error))))
            if answer is not None:
                guest.channel.send(answer, guest.outgoing if answer.numbers[_FRESH] else None)

    def _answer(self, guest: Guest, frame: Frame, data: NDArray[Any]) -> Frame | None:
        """What to answer, with the lock held; None where no answer is expected."""
        if frame.kind == Kind.PUSH:
            return self._push(guest, frame, data)
        if frame.kind == Kind.ASK:
            return self._ask(guest, frame)
        if frame.kind == Kind.PULL:
            while self._version < frame.numbers[0]:
                self._pause(guest)
            return self._with_values(guest, since=-1)
        if frame.kind == Kind.REGISTER:
            return self._register(guest, frame, data)
        if frame.kind == Kind.REPORT:
            assert self._coordinator is not None
            said = self._coordinator.staleness().to_json()
            return Frame(Kind.ANSWER, text=json.dumps(said).encode())
        if frame.kind == Kind.STATE:
            return Frame(Kind.ANSWER, text=self._owner.save())
        self._return(guest, frame)
        return None

    def _register(self, guest: Guest, frame: Frame, data: NDArray[Any]) -> Frame:
        """The layout of a worker's optimizer. The first worker's parameters are those that start;
        the others wait for it."""
        layout, dtype, recipe, rest = pickle.loads(frame.text)
        if self._layout is None and guest.rank == 0:
            self._owner.build(recipe, data.view(dtype).copy())
            self._layout, self._recipe, self._rest = (layout, dtype), recipe, rest
            if self._snapshots is not None:
                self._snapshot()
            self._changed.notify_all()
        while self._layout is None:
            self._pause(guest)
        if (layout, dtype) != self._layout:
            raise Desynchronized(
                f"The workers' models differ. Received: {_difference(layout, self._layout[0])}. "
                "Build the same model, and the same optimizer over it, on every rank."
            )
        guest.registered = True
        return replace(self._with_values(guest, since=-1), text=self._rest)

    def _push(self, guest: Guest, frame: Frame, data: NDArray[Any]) -> Frame | None:
        loader, epoch, lease, pulled, parts, wants = frame.numbers
        loss, weight = frame.reals
        also, settings, present = pickle.loads(frame.text) if frame.text else ((), None, b"")
        if settings is not None:
            guest.settings = self._owner.read_settings(settings)
        key, coordinator = (loader, epoch), self._coordinator
        if coordinator is None or coordinator.holds(guest.rank, key, lease):
            split = self._roles.workers if self._rules.bound == 0 else 1
            part = Part(data.view(self._layout[1]), present, weight, loss)
            if coordinator is not None:
                coordinator.settle(guest.rank, key, [*also, lease], gradient=True)
            whole = self._parts.add((key, lease // split), lease % split, parts, part)
            if whole is not None:
                self._update(guest, whole, self._version - pulled)
            self._changed.notify_all()
        if coordinator is None:
            return None
        return self._grant(guest, key, since=-1, batches=1 + len(also), wants=bool(wants))

    def _update(self, guest: Guest, whole: Part, staleness: int) -> None:
        self._owner.step(whole.gradient, whole.present, guest.settings)
        self._version += 1
        self._loss = whole.loss
        if self._coordinator is not None:
            self._coordinator.updated(staleness)
        if self._snapshots is not None and self._version % (self._rules.every or 1) == 0:
            self._snapshot()

    def _ask(self, guest: Guest, frame: Frame) -> Frame:
        coordinator = self._coordinator
        assert coordinator is not None
        loader, number, pulled, wait, samples, batch_size = frame.numbers
        key = loader, number
        coordinator.begin(key, Epoch(samples, batch_size, frame.reals[0] != 0.0))
        held = coordinator.holding(guest.rank, key)
        batches = held + 1 if wait else None
        return self._grant(guest, key, since=pulled, batches=batches, wants=True, wait=bool(wait))

    def _grant(
        self,
        guest: Guest,
        key: Key,
        *,
        since: int,
        batches: int | None,
        wants: bool,
        wait: bool = False,
    ) -> Frame:
        """A lease, or none, once the worker may go on.

        batches: that it does next, and may not be beyond the bound by; None for a lease that is
            only taken ahead. wait: until there is a lease, or the epoch is done by all.
        """
        coordinator = self._coordinator
        assert coordinator is not None
        rank = guest.rank
        lease: int | None = None
        while True:
            there = coordinator.has_lease(rank, key)
            if coordinator.waits(rank):
                lease = coordinator.next_lease(rank, key)
                if lease is not None:
                    break
            elif there or (coordinator.holding(rank, key) and not wait):
                if batches is None or coordinator.may_start(rank, key, batches):
                    lease = coordinator.next_lease(rank, key) if wants and there else None
                    break
            elif not wait or coordinator.finished(key):
                break
            self._pause(guest)
        of = coordinator.parts(key, lease)[2] if lease is not None else 0
        ended = coordinator.finished(key)
        return self._with_values(guest, -1 if lease is None else lease, ended, of, since=since)

    def _return(self, guest: Guest, frame: Frame) -> None:
        """Leases that brought no gradient, or will bring none."""
        assert self._coordinator is not None
        key, leases = pickle.loads(frame.text)
        if frame.kind == Kind.SETTLE:
            self._coordinator.settle(guest.rank, key, leases, gradient=False)
        else:
            self._coordinator.release(guest.rank, key, leases)
        self._changed.notify_all()

    def _with_values(
        self, guest: Guest, lease: int = -1, ended: bool = False, of: int = 0, *, since: int
    ) -> Frame:
        """An answer that carries the parameters where they are newer than `since`: a copy, since
        they change while it is sent."""
        import numpy as np

        fresh = guest.registered and self._version != since
        if fresh:
            values = self._owner.values
            if guest.outgoing is None:
                guest.outgoing = np.empty_like(values).data
            np.copyto(np.asarray(guest.outgoing), values)
        numbers = (lease, int(ended), self._version, of, int(fresh), 0)
        return Frame(Kind.ANSWER, numbers, (self._loss, 0.0))

    def _pause(self, guest: Guest) -> None:
        """Wait for a change, and keep the worker from thinking that nobody is there."""
        self._check(guest)
        if not self._changed.wait(WAIT_SECONDS):
            guest.channel.send(Frame(Kind.WAIT))

    def _check(self, guest: Guest) -> None:
        """Refuse what a worker says that was given up meanwhile."""
        if self._failure is not None or self._guests.get(guest.rank) is not guest:
            raise ConnectionAbortedError("the worker was given up")

    # ---- snapshots

    def _snapshot(self) -> None:
        assert self._snapshots is not None
        coordinator = self._coordinator
        content = {
            "layout": self._layout,
            "recipe": self._recipe,
            "rest": self._rest,
            "values": self._owner.values.copy(),
            "optimizer": self._owner.save(),
            "coordinator": None if coordinator is None else coordinator.save(),
        }
        self._snapshots.write(self._version, content)

    def _resume(self, snapshots: Snapshots) -> None:
        found = snapshots.newest()
        if found is None:
            return
        self._version, content = found
        self._layout, self._recipe = content["layout"], content["recipe"]
        self._rest = content["rest"]
        self._owner.build(self._recipe, content["values"])
        self._owner.restore(content["optimizer"])
        if self._coordinator is not None:
            self._coordinator.restore(content["coordinator"])
            logger.warning("training goes on from the snapshot after %d updates", self._version)


def _nobody(coordinator: Coordinator) -> WorkerFailed:
    return WorkerFailed(
        "No worker is left, and none came back within "
        f"{cluster.startup_seconds():g} s. Received so far: {coordinator.staleness()}. Look at the "
        "workers' own messages."
    )


def _difference(theirs: Any, ours: Any) -> str:
    """The first place in which two layouts differ."""
    for index, (one, other) in enumerate(zip(theirs, ours, strict=False)):
        if one != other:
            return f"parameter {index} is {one} here and {other} on rank 0"
    return f"{len(theirs)} parameters here and {len(ours)} on rank 0"
