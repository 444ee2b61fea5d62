"""Servers and workers without a framework: NumPy's plain SGD on a table, all in one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dream._plain import pack, unpack
from dream._topology import Cluster, Endpoint
from dream.cluster.store import Store
from dream.parameter_server.client import Client
from dream.parameter_server.deals import Epoch
from dream.parameter_server.holding import Rules
from dream.parameter_server.messages import Lease, Shard
from dream.parameter_server.owner import Owner
from dream.parameter_server.roles import Roles
from dream.parameter_server.server import Server
from dream.parameter_server.work import Work

TOKEN = "the-jobs-own-token"
SIZE = 6


class Plain(Owner):
    """values -= rate * gradient."""

    def __init__(self) -> None:
        self._values: NDArray[Any] = np.zeros(0)
        self._rate = 0.0
        self.steps = 0

    def build(self, recipe: bytes, values: NDArray[Any]) -> None:
        self._values, self._rate = values, unpack(recipe)

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


class Job:
    """workers threads and servers threads on one store."""

    def __init__(
        self, workers: int, servers: int, bound: int | None, every: int | None, folder: Path | None
    ) -> None:
        self.roles = Roles(workers, servers)
        self.store = Store("127.0.0.1", 0, TOKEN)
        self.in_step = bound == 0
        self.errors: list[BaseException] = []
        self.threads = [
            threading.Thread(
                target=self._serve, args=[rank, Rules(bound, every, folder)], daemon=True
            )
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

    def worker(self, rank: int) -> Worker:
        return Worker(self, rank)

    def _serve(self, rank: int, rules: Rules) -> None:
        try:
            Server(self.place(rank), self.roles, rules, Plain()).serve()
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


class Worker:
    """A worker of a job. seen: samples that it pushed a gradient of."""

    def __init__(self, job: Job, rank: int) -> None:
        self.rank, self._job = rank, job
        self.client = Client(job.place(rank), job.roles, in_step=job.in_step)
        self.work = Work(self.client, self._loaded, job.roles.workers, in_step=job.in_step)
        self.loads = 0
        self.seen: list[int] = []
        servers = job.roles.servers
        bounds = np.linspace(0, SIZE, servers + 1).astype(int)
        shards = [
            Shard(int(a), int(b), ((int(a), (int(b - a),)),), pack(0.5))
            for a, b in pairwise(bounds)
        ]
        self.client.register(shards, np.zeros(SIZE, np.float32), b"rest of rank %d" % rank)

    def epoch(
        self, number: int, epoch: Epoch, before: Callable[[Lease], None] | None = None
    ) -> None:
        """All batches that this worker is dealt; a batch's gradient is the mean of its samples'
        numbers."""
        current = self.work.begin((0, number), epoch, ahead=False)
        while (lease := current.take() or current.more()) is not None:
            if current.taken:
                current.taken.popleft()
            current.handed_out(lease)
            if before is not None:
                before(lease)
            samples = samples_of(lease, epoch)
            self.client.gradient[:] = np.mean(samples)
            self.seen += samples
            self.work.push(float(np.mean(samples)), None, None, [b""] * self._job.roles.servers)

    def vanish(self) -> None:
        """Its connections close without a word, as those of a process that was killed do."""
        self.client._lines._closed.set()
        for channel in self.client._lines._channels:
            channel.close()

    def _loaded(self) -> None:
        self.loads += 1


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
