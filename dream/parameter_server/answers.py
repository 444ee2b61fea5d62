"""What a server answers to what workers ask for. All of it happens under the server's lock."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

from dream._errors import Desynchronized
from dream.parameter_server.coordinator import Coordinator, Key
from dream.parameter_server.deals import Epoch
from dream.parameter_server.frames import Frame, Kind
from dream.parameter_server.guests import Guest, Guests
from dream.parameter_server.holding import Holding
from dream.parameter_server.parts import Part, Parts
from dream.parameter_server.words import Pushed, Registration, Returned, garbled

if TYPE_CHECKING:
    from numpy.typing import NDArray

FRESH = 4
"""Which number of an answer says whether parameters follow."""


@final
class Answers:
    """split: in how many parts a batch is dealt."""

    def __init__(
        self, guests: Guests, holding: Holding, coordinator: Coordinator | None, split: int
    ) -> None:
        self._guests, self._holding = guests, holding
        self._coordinator, self._split = coordinator, split
        self._parts = Parts()

    def to(self, guest: Guest, frame: Frame, data: NDArray[Any]) -> Frame | None:
        """What to answer; None where no answer is expected."""
        if frame.kind == Kind.PUSH:
            return self._push(guest, frame, data)
        if frame.kind == Kind.ASK:
            return self._ask(guest, frame)
        if frame.kind == Kind.PULL:
            while self._holding.version < frame.numbers[0]:
                self._guests.pause(guest)
            return self._with_values(guest, since=-1)
        if frame.kind == Kind.REGISTER:
            return self._register(guest, frame, data)
        if frame.kind == Kind.STATE:
            return Frame(Kind.ANSWER, text=self._holding.state())
        if self._coordinator is None:
            garbled("a question to this server")
        if frame.kind == Kind.REPORT:
            said = self._coordinator.staleness().to_json()
            return Frame(Kind.ANSWER, text=json.dumps(said).encode())
        if frame.kind not in (Kind.SETTLE, Kind.RELEASE):
            garbled("a kind of frame")
        self._return(guest, frame, self._coordinator)
        return None

    def expects(self, guest: Guest, frame: Frame) -> bool:
        """Whether a frame may be followed by a buffer of the size that it says."""
        if frame.kind == Kind.REGISTER:
            return True
        pushed = frame.kind == Kind.PUSH and guest.registered
        return frame.size == (self._holding.nbytes if pushed else 0)

    def _register(self, guest: Guest, frame: Frame, data: NDArray[Any]) -> Frame:
        """The layout of a worker's optimizer. The first worker's parameters are those that start;
        the others wait for it."""
        said = Registration.of(frame.text)
        holding = self._holding
        if holding.layout is None and guest.rank == 0:
            if said.nbytes != data.nbytes:
                garbled(f"{said.nbytes} bytes of parameters")
            holding.begin(said, data.view(said.dtype).copy())
            self._guests.changed.notify_all()
        while holding.layout is None:
            self._guests.pause(guest)
        if said.layout != holding.layout or said.dtype != holding.dtype:
            raise Desynchronized(
                f"The workers' models differ. Received: {_difference(said, holding)}. "
                "Build the same model, and the same optimizer over it, on every rank."
            )
        guest.registered = True
        return replace(self._with_values(guest, since=-1), text=holding.rest)

    def _push(self, guest: Guest, frame: Frame, data: NDArray[Any]) -> Frame | None:
        loader, epoch, lease, pulled, parts, wants = frame.numbers
        holding, coordinator = self._holding, self._coordinator
        said = Pushed.of(frame.text, len(holding.layout or ()))
        key = loader, epoch
        if coordinator is not None and not coordinator.knows(key):
            garbled("a push of an epoch that was begun")
        if said.settings is not None:
            guest.settings = holding.read_settings(said.settings)
        if coordinator is None or coordinator.holds(guest.rank, key, lease):
            loss, weight = frame.reals
            part = Part(data.view(holding.dtype), said.present, weight, loss)
            if coordinator is not None:
                coordinator.settle(guest.rank, key, [*said.also, lease], gradient=True)
            batch, index = divmod(lease, self._split)
            whole = self._parts.add((key, batch), index, parts, part)
            if whole is not None:
                holding.update(whole, guest.settings, holding.version - pulled)
            self._guests.changed.notify_all()
        if coordinator is None:
            return None
        batches = 1 + len(said.also)
        return self._grant(guest, key, coordinator, since=-1, batches=batches, wants=bool(wants))

    def _ask(self, guest: Guest, frame: Frame) -> Frame:
        coordinator = self._coordinator
        if coordinator is None:
            garbled("a question to this server")
        loader, number, pulled, wait, samples, batch_size = frame.numbers
        key = loader, number
        drop_last, mark = frame.reals
        if samples < 0 or batch_size < 1:
            garbled("an epoch")
        coordinator.begin(guest.rank, key, Epoch(samples, batch_size, drop_last != 0.0, int(mark)))
        batches = coordinator.holding(guest.rank, key) + 1 if wait else None
        return self._grant(
            guest, key, coordinator, since=pulled, batches=batches, wants=True, wait=bool(wait)
        )

    def _grant(
        self,
        guest: Guest,
        key: Key,
        coordinator: Coordinator,
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
        rank = guest.rank
        lease: int | None = None
        while True:
            there = coordinator.has_lease(rank, key)
            if coordinator.waits(rank):
                lease = coordinator.next_lease(rank, key)
                if lease is not None:
                    break
                coordinator.check_together(rank)
            elif there or (coordinator.holding(rank, key) and not wait):
                if batches is None or coordinator.may_start(rank, key, batches):
                    lease = coordinator.next_lease(rank, key) if wants and there else None
                    break
            elif not wait or coordinator.finished(key):
                break
            self._guests.pause(guest)
        of = coordinator.parts(key, lease)[2] if lease is not None else 0
        ended = coordinator.finished(key)
        return self._with_values(guest, -1 if lease is None else lease, ended, of, since=since)

    def _return(self, guest: Guest, frame: Frame, coordinator: Coordinator) -> None:
        """Leases that brought no gradient, or will bring none."""
        said = Returned.of(frame.text)
        if frame.kind == Kind.SETTLE:
            coordinator.settle(guest.rank, said.key, said.leases, gradient=False)
        else:
            coordinator.release(guest.rank, said.key, said.leases)
        self._guests.changed.notify_all()

    def _with_values(
        self, guest: Guest, lease: int = -1, ended: bool = False, of: int = 0, *, since: int
    ) -> Frame:
        """An answer that carries the parameters where they are newer than `since`: a copy, since
        they change while it is sent."""
        version = self._holding.version
        fresh = guest.registered and version != since
        if fresh:
            guest.outgoing = self._holding.copied(guest.outgoing)
        numbers = (lease, int(ended), version, of, int(fresh), 0)
        return Frame(Kind.ANSWER, numbers, (self._holding.loss, 0.0))


def _difference(said: Registration, holding: Holding) -> str:
    """The first place in which two layouts differ."""
    theirs, ours = said.layout, holding.layout or ()
    if theirs == ours:
        return f"parameters of {said.dtype} here and of {holding.dtype} on rank 0"
    for index, (one, other) in enumerate(zip(theirs, ours, strict=False)):
        if one != other:
            return f"parameter {index} is {one} here and {other} on rank 0"
    return f"{len(theirs)} parameters here and {len(ours)} on rank 0"
