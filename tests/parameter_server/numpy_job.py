"""Servers and workers without a framework: NumPy's plain SGD on a table, all in one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dream._plain import pack, unpack
from dream._topology import Cluster, Endpoint
from dream.cluster.store import Store
from dream.parameter_server.job import Roles, ServerJob
from dream.parameter_server.leases import Epoch, Lease
from dream.parameter_server.optimizer import ServerOptimizer, ServerSharding
from dream.parameter_server.server import Server
from dream.parameter_server.worker import Worker, WorkerState

TOKEN = "the-jobs-own-token"
SIZE = 6


class PlainSgd(ServerOptimizer):
    """values -= rate * gradient."""

    def __init__(self) -> None:
        self._values: NDArray[Any] = np.zeros(0)
        self._rate = 0.0
        self.steps = 0

    def build(self, spec: bytes, values: NDArray[Any]) -> None:
        self._values, self._rate = values, unpack(spec)

    @property
    def values(self) -> NDArray[Any]:
        return self._values

    def read_settings(self, settings: bytes) -> Any:
        return unpack(settings)

    def step(self, gradient: NDArray[Any], present: bytes, settings: Any) -> None:
        self._values -= (self._rate if settings is None else settings) * gradient
        self.steps += 1

    def save(self) -> bytes:
        return pack(self.steps)

    def restore(self, state: bytes) -> None:
        self.steps = unpack(state)


class PlainState(WorkerState):
    """SIZE zeros in as many parameters as there are servers."""

    def __init__(self, servers: int) -> None:
        bounds = np.linspace(0, SIZE, servers + 1).astype(int)
        sharding = ServerSharding([(int(b - a),) for a, b in pairwise(bounds)], servers)
        values = np.zeros(SIZE, np.float32)
        super().__init__(None, sharding, [pack(0.5)] * servers, values, np.zeros_like(values))
        self.rate = 0.5

    def load(self, updates: int) -> None:
        assert updates >= 0

    def settings(self) -> bytes:
        return pack(self.rate)

    def take_optimizer_state(self, saved: Sequence[bytes]) -> None:
        assert [unpack(steps) for steps in saved]


class Job:
    """workers threads and servers threads on one store."""

    def __init__(
        self, workers: int, servers: int, bound: int | None, every: int | None, folder: Path | None
    ) -> None:
        self.roles = Roles(workers, servers)
        self.rules = bound, every, folder
        self.store = Store("127.0.0.1", 0, TOKEN)
        self.errors: list[BaseException] = []
        self.threads = [
            threading.Thread(target=self._serve, args=[rank], daemon=True)
            for rank in self.roles.serving
        ]
        for thread in self.threads:
            thread.start()

    def place(self, rank: int, token: str = TOKEN) -> Cluster:
        return Cluster(
            source="test",
            rank=rank,
            local_rank=rank,
            world_size=self.roles.workers + self.roles.servers,
            local_world_size=self.roles.workers + self.roles.servers,
            rendezvous=Endpoint("127.0.0.1", self.store.port),
            token=token,
        )

    def seen_by(self, rank: int, token: str = TOKEN) -> ServerJob:
        return ServerJob(self.place(rank, token), self.roles, *self.rules)

    def worker(self, rank: int) -> PlainWorker:
        return PlainWorker(self, rank)

    def _serve(self, rank: int) -> None:
        try:
            Server(self.seen_by(rank), PlainSgd()).serve()
        except BaseException as error:
            self.errors.append(error)


@contextmanager
def job(
    workers: int = 2,
    servers: int = 1,
    bound: int | None = None,
    every: int | None = None,
    folder: Path | None = None,
) -> Iterator[Job]:
    running = Job(workers, servers, bound, every, folder)
    try:
        yield running
        for thread in running.threads:
            thread.join(timeout=200)
            assert not thread.is_alive()
        assert not running.errors
    finally:
        running.store.close()


class PlainWorker:
    """A worker of a job. seen: samples that it pushed a gradient of."""

    def __init__(self, job: Job, rank: int) -> None:
        self.rank = rank
        self.work = Worker(job.seen_by(rank))
        self.client = self.work.client
        self.seen: list[int] = []
        self.state = PlainState(job.roles.servers)
        self.work.hold(self.state, b"rest of rank %d" % rank)

    def epoch(
        self, number: int, epoch: Epoch, before: Callable[[Lease], None] | None = None
    ) -> None:
        """All batches that this worker is dealt; a batch's gradient is the mean of its samples'
        numbers."""
        current = self.work.begin((0, number), epoch, ahead=False)
        for lease in current.leases():
            if before is not None:
                before(lease)
            samples = samples_of(lease, epoch)
            self.state.gradient[:] = np.mean(samples)
            self.seen += samples
            self.work.push(float(np.mean(samples)), None, b"")

    def vanish(self) -> None:
        """Its connections close without a word, as those of a process that was killed do."""
        self.client._left.set()
        for channel in self.client._channels:
            channel.close()


def samples_of(lease: Lease, epoch: Epoch) -> list[int]:
    batch = range(epoch.samples)[lease.index * epoch.batch_size :][: epoch.size(lease.index)]
    return list(batch[lease.part :: lease.parts])


def come(what: threading.Event | threading.Semaphore) -> None:
    """Wait for what another worker does."""
    came = what.wait(100) if isinstance(what, threading.Event) else what.acquire(timeout=100)
    assert came, "the other worker does not come so far"


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 100
    while not done():
        assert time.monotonic() < end, "it does not come so far"
        time.sleep(0.02)


def together(*acts: Callable[[], None]) -> None:
    """Run all at once, to their end; the first error is raised."""
    errors: list[BaseException] = []

    def run(act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[act], daemon=True) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=200)
        assert not thread.is_alive(), "a worker hangs"
    if errors:
        raise errors[0]
