"""Servers and workers on real connections, whatever the framework."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Event, Semaphore

import numpy as np
import pytest
from numpy_job import SIZE, PlainWorker, come, job, together, until

from dream import ConfigurationError, Desynchronized, Unsupported
from dream._topology import Cluster
from dream.parameter_server.client import Client
from dream.parameter_server.leases import Epoch, Lease
from dream.parameter_server.protocol import FrameChannel, Purpose, connect

EPOCH = Epoch(samples=43, batch_size=4, drop_last=False)


def alone(epochs: int) -> np.ndarray:
    """What one process would have in the end."""
    values = np.zeros(SIZE, np.float32)
    for _ in range(epochs):
        for batch in range(EPOCH.batches):
            at = range(EPOCH.samples)[batch * 4 :][: EPOCH.size(batch)]
            values -= np.float32(0.5) * np.float32(np.mean(at))
    return values


@pytest.mark.parametrize("bound", [None, 0, 3])
def test_every_sample_once_an_epoch(bound: int | None) -> None:
    with job(workers=3, bound=bound) as running:
        workers = [running.worker(rank) for rank in range(3)]
        together(*(lambda w=w: [w.epoch(e, EPOCH) for e in range(2)] for w in workers))
        told = workers[1].client.staleness()
        for worker in workers:
            worker.client.leave()
    seen = Counter(sample for worker in workers for sample in worker.seen)
    assert seen == dict.fromkeys(range(EPOCH.samples), 2)
    assert told.updates == 2 * EPOCH.batches
    assert (told.repeated, told.lost, told.joined) == (0, 0, 0)


@pytest.mark.parametrize("servers", [1, 2])
def test_workers_that_share_each_batch_make_the_updates_of_one(servers: int) -> None:
    with job(workers=3, servers=servers, bound=0) as running:
        workers = [running.worker(rank) for rank in range(3)]
        together(*(lambda w=w: [w.epoch(e, EPOCH) for e in range(2)] for w in workers))
        told = workers[0].client.staleness()
        for worker in workers:
            worker.client.leave()
    for worker in workers:
        np.testing.assert_allclose(worker.state.values, alone(2), rtol=1e-6)
    assert told.max == 0
    assert told.lead == 0


@pytest.mark.parametrize("bound", [1, 3])
def test_no_clock_is_ahead_by_more_than_the_bound(bound: int) -> None:
    """The slow worker holds its first batch until the fast one has made the most of the bound."""
    held = Event()
    with job(bound=bound) as running:
        fast, slow = running.worker(0), running.worker(1)

        def wait(_: Lease) -> None:
            if not held.is_set():
                held.set()
                until(lambda: slow.client.staleness().lead >= bound)
                time.sleep(0.2)  # for one that would not stop there

        together(
            lambda: fast.epoch(0, EPOCH, lambda _: come(held)),
            lambda: slow.epoch(0, EPOCH, wait),
        )
        told = fast.client.staleness()
        for worker in (fast, slow):
            worker.client.leave()
    assert told.lead == bound
    assert sum(told.by_worker.values()) == EPOCH.batches


def test_without_a_bound_the_fast_do_not_wait_for_the_slow() -> None:
    """The slow worker holds its first batch until the fast one has the last of all others."""
    held, last = Event(), Event()
    with job(bound=None) as running:
        fast, slow = running.worker(0), running.worker(1)

        def hurry(_: Lease) -> None:
            come(held)
            if fast.work.pushes == EPOCH.batches - 2:
                last.set()

        def hold(_: Lease) -> None:
            held.set()
            come(last)

        together(lambda: fast.epoch(0, EPOCH, hurry), lambda: slow.epoch(0, EPOCH, hold))
        told = fast.client.staleness()
        for worker in (fast, slow):
            worker.client.leave()
    assert told.by_worker == {0: EPOCH.batches - 1, 1: 1}
    assert told.lead >= EPOCH.batches - 2


def _dies(worker: PlainWorker, begun: Semaphore) -> None:
    """The worker's connections close in the middle of its third batch, as those of a dead process
    do. begun: raised by one for each batch."""

    class Dead(Exception):
        pass

    count = 0

    def die(_: Lease) -> None:
        nonlocal count
        count += 1
        if count > 2:
            worker.vanish()
        begun.release()
        if count > 2:
            raise Dead

    with pytest.raises(Dead):
        worker.epoch(0, EPOCH, die)


def _beside(begun: Semaphore) -> Callable[[Lease], None]:
    """What the other worker does before each batch: it waits until the dying one has as many."""
    first = iter(range(3))
    return lambda _: come(begun) if next(first, None) is not None else None


@pytest.mark.parametrize("bound", [None, 0, 2])
def test_what_a_dead_worker_held_is_dealt_again(bound: int | None) -> None:
    begun = Semaphore(0)
    with job(bound=bound) as running:
        workers = [running.worker(rank) for rank in range(2)]
        together(
            lambda: workers[0].epoch(0, EPOCH, _beside(begun)),
            lambda: _dies(workers[1], begun),
        )
        told = workers[0].client.staleness()
        workers[0].client.leave()
    seen = Counter(sample for worker in workers for sample in worker.seen)
    assert seen == dict.fromkeys(range(EPOCH.samples), 1)
    assert told.lost == 1
    assert told.repeated == (2 if bound == 0 else 4)
    assert told.updates == EPOCH.batches
    if bound == 0:
        np.testing.assert_allclose(workers[0].state.values, alone(1), rtol=1e-6)


def test_a_worker_comes_back_while_training_runs() -> None:
    begun, back = Semaphore(0), Event()
    with job(bound=2) as running:
        workers = [running.worker(rank) for rank in range(2)]

        def comes_back() -> None:
            _dies(workers[1], begun)
            workers.append(running.worker(1))
            workers[2].epoch(0, EPOCH, lambda _: back.set())
            workers[2].epoch(1, EPOCH)

        def stays() -> None:
            beside = _beside(begun)

            def wait(lease: Lease) -> None:
                beside(lease)
                if workers[0].work.pushes == 3:
                    come(back)

            workers[0].epoch(0, EPOCH, wait)
            workers[0].epoch(1, EPOCH)

        together(stays, comes_back)
        told = workers[0].client.staleness()
        workers[0].client.leave()
        workers[2].client.leave()
    seen = Counter(sample for worker in workers for sample in worker.seen)
    assert seen == dict.fromkeys(range(EPOCH.samples), 2)
    assert told.joined == 1
    assert told.lead <= 2
    assert workers[2].seen


def test_a_worker_that_stood_still_is_given_up_and_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that is stopped as a whole is in test_server_faults; here one only stops
    beating."""
    monkeypatch.setattr("dream.parameter_server.server.SILENT_SECONDS", 4.0)
    frozen, lost = Event(), Event()
    with job(bound=None) as running:
        first = running.worker(0)
        monkeypatch.setattr("dream.parameter_server.client.BEAT_SECONDS", 600.0)
        second = running.worker(1)
        second.state.rate = 0.25

        def wait(_: Lease) -> None:
            come(frozen)
            until(lambda: first.client.staleness().lost == 1)
            lost.set()

        def freeze(_: Lease) -> None:
            if len(second.seen) == 4:
                frozen.set()
                come(lost)

        together(lambda: first.epoch(0, EPOCH, wait), lambda: second.epoch(0, EPOCH, freeze))
        told = first.client.staleness()
        first.client.refresh()
        first.client.leave()
        second.client.leave()
    assert (told.lost, told.joined) == (1, 1)
    assert told.repeated == 4
    assert told.updates == EPOCH.batches
    lost = second.seen[4:8]  # the push that came too late
    wanted = 0.0
    for seen, rate in ((first.seen, 0.5), ([*second.seen[:4], *second.seen[8:]], 0.25)):
        for batch in {sample // EPOCH.batch_size for sample in seen}:
            wanted -= rate * (batch * EPOCH.batch_size + (EPOCH.size(batch) - 1) / 2)
    assert len({sample // EPOCH.batch_size for sample in lost}) == 1
    np.testing.assert_allclose(first.state.values, wanted, rtol=1e-6)


def test_a_loop_that_breaks_off_leaves_its_batch_to_the_others() -> None:
    with job(bound=None) as running:
        workers = [running.worker(rank) for rank in range(2)]
        current = workers[1].work.begin((0, 0), EPOCH, ahead=False)
        lease = current.take()
        assert lease is not None
        current.abandon()
        workers[0].epoch(0, EPOCH)
        assert sorted(workers[0].seen) == list(range(EPOCH.samples))
        for worker in workers:
            worker.client.leave()


def test_a_batch_of_a_pass_in_which_another_was_begun_is_refused() -> None:
    """Two zipped loaders: the first ended after a batch, as if it had no more."""
    with job(workers=1, bound=None) as running:
        worker = running.worker(0)
        first = worker.work.begin((0, 0), EPOCH, ahead=False)
        assert first.take() is not None
        assert worker.work.begin((1, 0), EPOCH, ahead=False).take() is not None
        for take in (first.take, first.take_more):
            with pytest.raises(Unsupported, match="from only one loader at a time"):
                take()
        worker.client.leave()


def test_in_step_a_pass_that_one_worker_alone_leaves_is_told() -> None:
    """The other would wait for its part without end."""
    with job(workers=2, bound=0) as running:
        stays, leaves = running.worker(0), running.worker(1)

        def leave() -> None:
            current = leaves.work.begin((0, 0), EPOCH, ahead=False)
            current.take()
            leaves.work.begin((0, 1), EPOCH, ahead=False).take()

        with pytest.raises(Desynchronized, match="rank 1 started another epoch"):
            together(lambda: stays.epoch(0, EPOCH), leave)
        for worker in (stays, leaves):
            worker.client.leave()


def test_snapshots_bring_back_parameters_and_what_is_done(tmp_path: Path) -> None:
    with job(workers=1, bound=None, every=3, folder=tmp_path) as running:
        worker = running.worker(0)
        worker.epoch(0, EPOCH)
        worker.client.leave()
    with job(workers=1, bound=None, every=3, folder=tmp_path) as running:
        again = running.worker(0)
        again.epoch(0, EPOCH)
        assert again.seen == worker.seen[-7:]  # 11 updates, the last snapshot after 9: 2 batches
        np.testing.assert_allclose(again.state.values, alone(1), rtol=1e-6)
        assert again.client.staleness().updates == EPOCH.batches
        again.client.leave()


def test_rank_0s_parameters_start() -> None:
    with job() as running:
        first, second = running.worker(0), running.worker(1)
        second.state.values.fill(1)
        assert second.work.hold(second.state, b"") == b"rest of rank 0"
        assert not second.state.values.any()
        for worker in (first, second):
            worker.client.leave()


def test_models_that_differ_are_refused() -> None:
    with job() as running:
        first, second = running.worker(0), running.worker(1)
        shards = second.client._shards
        wrong = [type(shards[0])(0, SIZE, ((0, (2, 3)),), shards[0].spec)]
        values = np.zeros(SIZE, np.float32)
        with pytest.raises(Desynchronized, match=r"parameter 0 is .*\(2, 3\).* on rank 0"):
            second.client.register(wrong, values, values, b"", b"")
        for worker in (first, second):
            worker.client.leave()


def test_loaders_that_differ_are_refused() -> None:
    with job() as running:
        first, second = running.worker(0), running.worker(1)
        first.work.begin((0, 0), EPOCH, ahead=False).take()
        other = Epoch(44, 4, drop_last=False)
        with pytest.raises(Desynchronized, match="samples=44"):
            second.work.begin((0, 0), other, ahead=False).take()
        for worker in (first, second):
            worker.client.leave()


def test_a_step_without_a_batch_is_refused() -> None:
    with job(workers=1) as running:
        worker = running.worker(0)
        with pytest.raises(ConfigurationError, match="does not belong to a batch"):
            worker.work.push(0.0, None, b"")
        worker.client.leave()


def test_a_step_on_two_shared_batches_is_refused() -> None:
    with job(workers=2, bound=0) as running:
        workers = [running.worker(rank) for rank in range(2)]
        current = workers[0].work.begin((0, 0), EPOCH, ahead=True)
        for _ in range(2):
            lease = current.take()
            assert lease is not None
            current.hand_out(lease)
        with pytest.raises(Unsupported, match="staleness=0, a step on 2 batches"):
            workers[0].work.push(0.0, None, b"")
        for worker in workers:
            worker.client.leave()


def test_a_stranger_is_turned_away() -> None:
    """Whoever lacks the job's token gets no word, and whoever lacks the word no answer."""
    with job(workers=1) as running:
        worker = running.worker(0)
        with pytest.raises(ConfigurationError, match="refused the token"):
            Client(running.seen_by(0, token="another-token"))
        host, port, _ = running.store.values["servers/1"].decode().split()
        assert host == "127.0.0.1"
        with socket.create_connection((host, int(port)), 60) as stranger:
            stranger.sendall(b"0" * 32 + bytes(5))
            assert stranger.recv(1) == b""
        worker.epoch(0, EPOCH)
        worker.client.leave()


def test_a_second_server_stays_however_long_training_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a call may stall."""

    def impatient(place: Cluster, server: int, purpose: Purpose, seconds: float) -> FrameChannel:
        channel = connect(place, server, purpose, seconds)
        if purpose == "watch":
            channel.settimeout(0.3)
        return channel

    monkeypatch.setattr("dream.parameter_server.server.connect", impatient)
    with job(workers=1, servers=2) as running:
        worker = running.worker(0)
        worker.epoch(0, Epoch(8, 4, drop_last=False), lambda _: time.sleep(0.5))
        worker.client.leave()
