"""A worker's passes over its data: which leases it has, and what becomes of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import final

from dream._errors import ConfigurationError, Unsupported
from dream.parameter_server.client import Client
from dream.parameter_server.coordinator import Key
from dream.parameter_server.deals import Epoch
from dream.parameter_server.messages import Answer, Lease, Push


@final
class Pass:
    """One pass over a loader.

    A lease is taken by whoever reads the data, maybe ahead; it is in hand once its batch is with
    the training loop; and it is done once a gradient of it was pushed.
    granted: leases that came with an answer and nobody has taken yet.
    """

    def __init__(self, work: Work, key: Key, epoch: Epoch, *, ahead: bool) -> None:
        self.key, self.epoch, self.ahead = key, epoch, ahead
        self.granted: deque[Lease] = deque()
        self.taken: deque[Lease] = deque()
        self.in_hand: list[Lease] = []
        self.over = False
        self._work = work

    def take(self) -> Lease | None:
        """The next lease for whoever reads data; None where there is none at present."""
        if self.over:
            return None
        if self.granted and not self.ahead:
            lease: Lease | None = self.granted.popleft()
        else:
            lease = self._work.ask(self, wait=not (self.taken or self.in_hand))
        if lease is not None:
            self.taken.append(lease)
        return lease

    def more(self) -> Lease | None:
        """A lease for at once, since there was none to take; None once the epoch is done by all
        workers. What is in hand brought no gradient."""
        if self.granted:
            return self.granted.popleft()
        if self.over:
            return None
        self._work.settle(self)
        return self._work.ask(self, wait=True)

    def handed_out(self, lease: Lease) -> None:
        """The loop gets the lease's batch."""
        self.in_hand.append(lease)

    def abandon(self) -> None:
        """The loop broke off: what it has not stepped on is for others."""
        if not self.over:
            self.over = True
            self._work.release([*self.in_hand, *self.taken, *self.granted])


@final
class Work:
    """What a worker does. load: called when the client's `values` have changed.

    workers: how many there are; in_step: whether they share each batch.
    """

    def __init__(
        self, client: Client, load: Callable[[], None], workers: int, *, in_step: bool
    ) -> None:
        self._client, self._load = client, load
        self._shared = in_step and workers > 1
        self._current: Pass | None = None
        self.pushes = 0
        """How many steps this worker has made."""

    @property
    def updates(self) -> int:
        """How many updates the job had made when this worker last took the parameters."""
        return max(0, self._client.version)

    @property
    def inside(self) -> bool:
        """Whether a pass is going on."""
        return self._current is not None and not self._current.over

    def begin(self, key: Key, epoch: Epoch, *, ahead: bool) -> Pass:
        """A pass begins; one that is still open is abandoned. ahead: batches are read before
        they are asked for."""
        if self._current is not None:
            self._current.abandon()
        self._current = Pass(self, key, epoch, ahead=ahead)
        return self._current

    def push(
        self, loss: float, weight: float | None, settings: bytes | None, present: list[bytes]
    ) -> Answer:
        """A step on the batches in hand, whose gradient is in the client's `gradient`.

        weight: how many things the loss is the mean over; None goes by samples.
        """
        current = self._current
        if current is None or not current.in_hand:
            raise ConfigurationError(
                "This step is of no batch that was dealt. Received: a step before any batch, or "
                "a second one on the same batch. Take batches from a loader made in the block, "
                "and step once on each."
            )
        leases, current.in_hand = current.in_hand, []
        if self._shared and len(leases) > 1:
            raise Unsupported(
                "Workers that share each batch step on each. Received: staleness=0, a step on "
                f"{len(leases)} batches. Use a larger batch_size, or staleness=1 or more."
            )
        counted = float(_samples(leases, current.epoch)) if weight is None else weight
        wants = not current.ahead and not current.granted
        self.pushes += 1
        answer = self._client.push(Push(leases, loss, counted, settings, present, wants))
        self._take_in(current, answer)
        return answer

    def ask(self, current: Pass, *, wait: bool) -> Lease | None:
        answer = self._client.ask(current.key, current.epoch, wait=wait)
        if answer.fresh:
            self._load()
        current.over = current.over or (wait and answer.lease is None and answer.ended)
        return answer.lease

    def settle(self, current: Pass) -> None:
        leases, current.in_hand = current.in_hand, []
        if leases and self._shared:
            raise Unsupported(
                "Workers that share each batch step on each. Received: staleness=0, a batch "
                "without a step. Step on every batch, or use staleness=1 or more."
            )
        self._client.settle(leases)

    def release(self, leases: list[Lease]) -> None:
        self._client.release(leases)

    def _take_in(self, current: Pass, answer: Answer) -> None:
        if answer.fresh:
            self._load()
        if answer.lease is not None:
            current.granted.append(answer.lease)


def _samples(leases: list[Lease], epoch: Epoch) -> int:
    return sum(len(range(lease.part, epoch.size(lease.index), lease.parts)) for lease in leases)
