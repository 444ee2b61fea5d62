"""Ranks of the part of asynchronous.py with many workers and two servers: dream's in either
framework, TensorFlow's own, and a bare push and pull. A model is two layers of one size, so that
each server holds half. Each function gives updates a second of all workers together."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dream
from dream import cluster

SERVERS, BATCH = 2, 4
WIDTHS = {"1 MB": 362, "100 MB": 3620}
"""Two matrices of so many rows and columns, in float32."""


def bare(workers: int, name: str, count: int) -> float:
    """A flat half of the gradient to each server over a socket, the parameters back; a server
    steps the same optimizer for one worker at a time. No clocks, no leases, no faults."""
    place = cluster.detect()
    if place.rank >= workers:
        return _bare_server(place, workers, WIDTHS[name])
    return _bare_worker(place, workers, WIDTHS[name], count)


def _bare_server(place: Any, workers: int, width: int) -> float:
    import torch

    torch.set_num_threads(1)
    value = torch.nn.Parameter(torch.zeros(width * width + width))
    optimizer = torch.optim.SGD([value], lr=1e-4, momentum=0.9)
    listener = socket.create_server(("127.0.0.1", 0))
    port = str(listener.getsockname()[1]).encode()
    cluster.post(place, f"bare/{place.rank}", port)
    turn = threading.Lock()

    def serve(connection: socket.socket) -> None:
        gradient = torch.zeros_like(value)
        out = torch.zeros_like(gradient)
        while _read(connection, gradient):
            with turn:
                value.grad = gradient
                optimizer.step()
                out.copy_(value.detach())
            connection.sendall(memoryview(out.numpy()).cast("B"))

    serving = [
        threading.Thread(target=serve, args=(_quick(listener.accept()[0]),)) for _ in range(workers)
    ]
    for thread in serving:
        thread.start()
    for thread in serving:
        thread.join()
    return 0.0


def _bare_worker(place: Any, workers: int, width: int, count: int) -> float:
    import torch

    model, x, y = _torch_model(width)
    ports = [cluster.posted(place, f"bare/{workers + n}") for n in range(SERVERS)]
    links = [_quick(socket.create_connection(("127.0.0.1", int(port)))) for port in ports]
    halves = [list(layer.parameters()) for layer in model]
    flats = [torch.cat([p.detach().ravel() for p in half]) for half in halves]

    def update() -> None:
        model.zero_grad(set_to_none=True)
        torch.nn.functional.mse_loss(model(x), y).backward()
        for link, half, flat in zip(links, halves, flats, strict=True):
            torch.cat([p.grad.ravel() for p in half], out=flat)
            link.sendall(memoryview(flat.numpy()).cast("B"))
        for link, half, flat in zip(links, halves, flats, strict=True):
            _read(link, flat)
            for p, part in zip(half, flat.split([p.numel() for p in half]), strict=True):
                p.data.copy_(part.view_as(p))

    update()
    taken = _together(place, workers, lambda: [update() for _ in range(count // workers)])
    for link in links:
        link.close()
    return count / taken


def _together(place: Any, workers: int, act: Callable[[], object]) -> float:
    """Seconds from when all workers stand ready to when the last has done."""
    for when in ("ready", "done"):
        cluster.post(place, f"bare/{when}/{place.rank}", b"1")
        for rank in range(workers):
            cluster.posted(place, f"bare/{when}/{rank}")
        if when == "ready":
            begin = time.perf_counter()
            act()
    return time.perf_counter() - begin


def _read(connection: socket.socket, into: Any) -> bool:
    view = memoryview(into.numpy()).cast("B")
    while view:
        got = connection.recv_into(view)
        if not got:
            return False
        view = view[got:]
    return True


def _quick(connection: socket.socket) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _torch_model(width: int) -> Any:
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = (torch.nn.Linear(width, width) for _ in range(2))
    return torch.nn.Sequential(*layers), torch.randn(BATCH, width), torch.randn(BATCH, width)


def by_torch(workers: int, name: str, count: int) -> float:
    """dream's servers in PyTorch."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    with dream.strategy("parameter_server", workers=workers, servers=SERVERS) as strategy:
        model, x, y = _torch_model(WIDTHS[name])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        step = strategy.train_step(model, torch.nn.functional.mse_loss, optimizer)
        rows = [TensorDataset(x.repeat(n, 1), y.repeat(n, 1)) for n in (workers, count)]
        return _second_pass(step, [DataLoader(each, batch_size=BATCH) for each in rows], count)


def by_tensorflow(workers: int, name: str, count: int) -> float:
    """dream's servers in TensorFlow."""
    import keras

    with dream.strategy("parameter_server", workers=workers, servers=SERVERS) as strategy:
        model, optimizer = _keras_model(WIDTHS[name]), _keras_optimizer()
        step = strategy.train_step(model, keras.losses.MeanSquaredError(), optimizer)
        rows = [_rows(WIDTHS[name]).take(number) for number in (workers, count)]
        return _second_pass(step, [strategy.prepare(each) for each in rows], count)


def _second_pass(step: Callable[..., Any], passes: Sequence[Any], count: int) -> float:
    """Updates a second in the second, which the workers begin together and end together."""
    begin = 0.0
    for batches in passes:
        begin = time.perf_counter()
        for batch in batches:
            step(*batch)
    return count / (time.perf_counter() - begin)


def _keras_model(width: int) -> Any:
    import keras

    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(width) for _ in range(2)]
    return keras.Sequential([keras.Input((width,)), *layers])


def _keras_optimizer() -> Any:
    import keras

    return keras.optimizers.SGD(1e-4, momentum=0.9)


def _rows(width: int) -> Any:
    """The same batch again and again."""
    import tensorflow as tf

    both = tf.random.normal((2, BATCH, width), seed=0)
    return tf.data.Dataset.from_tensors((both[0], both[1])).repeat()


def tensorflows_own(workers: int, name: str, count: int) -> float:
    """ParameterServerStrategy with a custom loop. Rank 0 is the chief, who also waits."""
    import os

    import tensorflow as tf

    place = cluster.detect()
    ends = [str(end) for end in cluster.exchange_endpoints(place)]
    jobs = {"chief": ends[:1], "worker": ends[1 : workers + 1], "ps": ends[workers + 1 :]}
    spec = tf.train.ClusterSpec(jobs)
    if place.rank:
        job = "worker" if place.rank <= workers else "ps"
        number = place.rank - 1 - (0 if job == "worker" else workers)
        tf.distribute.Server(spec, job, number, protocol="grpc")
        while cluster.found(place, "raw/done") is None:
            time.sleep(0.5)
        return 0.0
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        spec, task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    rate = _scheduled(strategy, coordinator, WIDTHS[name], workers, count)
    cluster.post(place, "raw/done", b"done")
    return rate


def _scheduled(strategy: Any, coordinator: Any, width: int, workers: int, count: int) -> float:
    import keras
    import tensorflow as tf

    with strategy.scope():
        model, optimizer = _keras_model(width), _keras_optimizer()
        optimizer.build(model.trainable_variables)
    judge = keras.losses.MeanSquaredError()

    def replica(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = judge(y, model(x, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return value

    @tf.function
    def step(batches: Iterator[Any]) -> Any:
        return strategy.run(replica, args=next(batches))

    batches = iter(coordinator.create_per_worker_dataset(lambda: _rows(width)))
    begin = 0.0
    for number in (2 * workers, count):
        begin = time.perf_counter()
        for _ in range(number):
            coordinator.schedule(step, args=(batches,))
        coordinator.join()
    return count / (time.perf_counter() - begin)
