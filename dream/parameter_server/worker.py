"""A worker: what the servers hold for it, and the leases that it takes and brings gradients of."""

from __future__ import annotations

import atexit
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, final

from dream import cluster
from dream._errors import ConfigurationError, Desynchronized, Unsupported, WorkerFailed
from dream._log import logger
from dream.parameter_server.client import Client
from dream.parameter_server.job import ServerJob, end_process
from dream.parameter_server.leases import Epoch, Lease
from dream.parameter_server.optimizer import ServerSharding
from dream.parameter_server.protocol import EpochKey

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def dtype_of(names: Iterable[str], remedy: str) -> np.dtype[Any]:
    """Return the only dtype of parameters that servers can hold. remedy: how to compute in
    others."""
    import numpy as np

    found = set(names)
    if len(found) != 1 or not found <= {"float32", "float64"}:
        raise Unsupported(
            "Servers hold parameters of one dtype, float32 or float64. Received: "
            f"{', '.join(sorted(found)) or 'nothing that is trained'}. Keep the parameters in "
            f"float32, and compute in others with {remedy}."
        )
    return np.dtype(found.pop())


def check_untrained(own: Sequence[tuple[int, ...]], told: Sequence[tuple[int, ...]]) -> None:
    """Compare the shapes of what no optimizer holds with rank 0's."""
    if own != told:
        raise Desynchronized(
            "The workers' models differ in state that no optimizer trains: buffers, running "
            f"statistics, frozen parameters. Received: {len(own)} such tensors here, {len(told)} "
            "on rank 0, or other shapes. Build the same model on every rank."
        )


class WorkerState(ABC):
    """A script's optimizer, whose parameters and steps are the servers': between a framework's
    tensors and flat arrays, each of shape (n,).

    specs: the optimizer for each server; values, gradient: what comes from servers and goes there.
    """

    def __init__(
        self,
        optimizer: Any,
        sharding: ServerSharding,
        specs: Sequence[bytes],
        values: NDArray[Any],
        gradient: NDArray[Any],
    ) -> None:
        self.optimizer, self.sharding, self.specs = optimizer, sharding, specs
        self.values, self.gradient = values, gradient

    @abstractmethod
    def load(self, updates: int) -> None:
        """Take `values`, which are those after so many updates, into the parameters."""

    @abstractmethod
    def settings(self) -> bytes:
        """Pack the hyper-parameters as they are now."""

    @abstractmethod
    def take_optimizer_state(self, saved: Sequence[bytes]) -> None:
        """Take what each server's `ServerOptimizer.save` gave."""


@final
class LeasedPass:
    """One pass over a loader.

    A lease is taken by whoever reads the data, maybe ahead; it is in hand once its batch is with
    the training loop; and it is done once a gradient of it was pushed.
    granted: leases that came with an answer and nobody has taken yet.
    """

    def __init__(self, worker: Worker, key: EpochKey, epoch: Epoch, *, ahead: bool) -> None:
        self.key, self.epoch, self.ahead = key, epoch, ahead
        self.granted: deque[Lease] = deque()
        self.taken: deque[Lease] = deque()
        self.in_hand: list[Lease] = []
        self.over = self._left = False
        self._worker = worker

    def leases(self) -> Iterator[Lease]:
        """Take and hand out each lease as it is asked for: none is read ahead."""
        while (lease := self.take() or self.take_more()) is not None:
            self.taken.clear()
            self.hand_out(lease)
            yield lease

    def take(self) -> Lease | None:
        """Take the next lease for whoever reads data; None where there is none at present."""
        if self._is_over():
            return None
        if self.granted and not self.ahead:
            lease: Lease | None = self.granted.popleft()
        else:
            lease = self._worker.ask(self, wait=not (self.taken or self.in_hand))
        if lease is not None:
            self.taken.append(lease)
        return lease

    def take_more(self) -> Lease | None:
        """Take a lease for at once, since there was none to take; None once the epoch is done by
        all workers. What is in hand brought no gradient."""
        if self.granted and not self.over:
            return self.granted.popleft()
        if self._is_over():
            return None
        self._worker.settle(self)
        return self._worker.ask(self, wait=True)

    def hand_out(self, lease: Lease) -> None:
        """Note that the loop gets the lease's batch."""
        self.in_hand.append(lease)

    def abandon(self) -> None:
        """Leave what the loop, which broke off, has not stepped on to others."""
        if not self.over:
            self.over = self._left = True
            self._worker.client.release([*self.in_hand, *self.taken, *self.granted])

    def _is_over(self) -> bool:
        """Whether there is nothing more of it to take, as where it is done by all."""
        if self._left:
            raise Unsupported(
                "A worker can read from only one loader at a time. Received: a batch requested "
                "from a second loader while the first was in use, as with zip, or an evaluation "
                "with gradients enabled. Combine them into one dataset, evaluate in "
                "torch.no_grad(), or use 'mirrored'."
            )
        return self.over


@final
class Worker:
    """Trains on one rank against the servers: pulls parameters, pushes gradients.

    pushes: how many steps this worker has made; state: what the servers hold, once they do.
    """

    def __init__(self, job: ServerJob) -> None:
        self.job, self.client = job, Client(job)
        self.pushes = 0
        self.state: WorkerState | None = None
        self._current: LeasedPass | None = None

    @classmethod
    def join(cls, job: ServerJob) -> Self:
        """Come to the servers, and leave them with the process. Ends this process where the others
        have finished without it."""
        logger.info("parameter_server: rank 0 is the chief; %s", job.roles)
        try:
            worker = cls(job)
        except WorkerFailed:
            if cluster.found(job.place, "roles/lost") is None:
                raise
            logger.warning("worker of rank %d came back after the end of training", job.place.rank)
            end_process()
        atexit.register(worker.client.leave)
        return worker

    @property
    def shares_batches(self) -> bool:
        """Whether workers share each batch."""
        return self.job.parts > 1

    @property
    def updates(self) -> int:
        """How many updates the job had made when this worker last took the parameters."""
        return max(0, self.client.version)

    @property
    def inside(self) -> bool:
        """Whether a pass is going on."""
        return self._current is not None and not self._current.over

    def hold(self, state: WorkerState, untrained: bytes) -> bytes:
        """Have the servers hold this, or take from them what they hold. untrained: whatever else of
        the model must start alike; rank 0's is returned."""
        shards, settings = state.sharding.shards(state.specs), state.settings()
        told = self.client.register(shards, state.values, state.gradient, settings, untrained)
        self.state = state
        self._load()
        return told

    def begin(self, key: EpochKey, epoch: Epoch, *, ahead: bool) -> LeasedPass:
        """Begin a pass; one that is still open is abandoned. ahead: batches are read before they
        are asked for."""
        if self._current is not None:
            self._current.abandon()
        self._current = LeasedPass(self, key, epoch, ahead=ahead)
        return self._current

    def push(self, loss: float, weight: float | None, present: bytes) -> float:
        """Push a step on the batches in hand, whose gradient is in the state's. The loss of the
        update, once the worker may go on.

        weight: how many things the loss is the mean over; None goes by samples. present: as in
        `ServerOptimizer.step`, in the order of the sharding.
        """
        current = self._current
        if current is None or not current.in_hand:
            raise ConfigurationError(
                "This step does not belong to a batch handed out by the loader. Received: a step "
                "before any batch, or a second one on the same batch. Take batches from a loader "
                "made in the block, and step once per batch."
            )
        leases, current.in_hand = current.in_hand, []
        if self.shares_batches and len(leases) > 1:
            raise Unsupported(
                "Workers that share each batch (staleness=0) must step once on each batch. "
                f"Received: staleness=0, a step on {len(leases)} batches. Use a larger batch_size, "
                "or staleness=1 or more."
            )
        if weight is None:
            weight = float(sum(lease.samples(current.epoch) for lease in leases))
        wants = not current.ahead and not current.granted
        self.pushes += 1
        assert self.state is not None
        masks = self.state.sharding.split(present)
        settings = self.state.settings()
        answer = self.client.push(leases, loss, weight, settings, masks, wants=wants)
        if answer.fresh:
            self._load()
        if answer.lease is not None:
            current.granted.append(answer.lease)
        return answer.loss

    def ask(self, current: LeasedPass, *, wait: bool) -> Lease | None:
        answer = self.client.ask(current.key, current.epoch, wait=wait)
        if answer.fresh:
            self._load()
        current.over = current.over or (wait and answer.lease is None and answer.ended)
        return answer.lease

    def settle(self, current: LeasedPass) -> None:
        leases, current.in_hand = current.in_hand, []
        if leases and self.shares_batches:
            raise Unsupported(
                "Workers that share each batch (staleness=0) must step once on each batch. "
                "Received: staleness=0, a batch without a step. Step on every batch, or use "
                "staleness=1 or more."
            )
        self.client.settle(leases)

    def refresh(self) -> None:
        """Take the newest parameters."""
        if self.state is not None and self.client.refresh():
            self._load()

    def fetch_optimizer_state(self, optimizer: Any) -> None:
        """Take the servers' state into the optimizer, where they have taken it over."""
        if self.state is not None and self.state.optimizer is optimizer:
            self.state.take_optimizer_state(self.client.optimizer_state())

    def _load(self) -> None:
        if self.state is not None:
            self.state.load(self.updates)
