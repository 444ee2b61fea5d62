"""Ranks of the part of asynchronous.py with many workers and two servers: dream's in either
framework, TensorFlow's own, and a bare push and pull. A model is two layers of one size, so that
each server holds half. Each function gives updates a second of all workers together, by model."""

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
Counts = dict[str, int]


def bare(workers: int, counts: Counts) -> dict[str, float]:
    """A flat half of the gradient to each server over a socket, the parameters back; a server
    steps the same optimizer for one worker at a time. No clocks, no leases, no faults."""
    place = cluster.detect()
    return {
        name: _bare_server(place, name, workers)
        if place.rank >= workers
        else _bare_worker(place, name, workers, count)
        for name, count in counts.items()
    }


def _bare_server(place: Any, name: str, workers: int) -> float:
    import torch

    torch.set_num_threads(1)
    width = WIDTHS[name]
    value = torch.nn.Parameter(torch.zeros(width * width + width))
    optimizer = torch.optim.SGD([value], lr=1e-4, momentum=0.9)
    listener = socket.create_server(("127.0.0.1", 0))
    port = str(listener.getsockname()[1]).encode()
    cluster.post(place, f"bare/{WIDTHS[name]}/{place.rank}", port)
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


def _bare_worker(place: Any, name: str, workers: int, count: int) -> float:
    import torch

    model, x, y = _torch_model(WIDTHS[name])
    ports = [cluster.posted(place, f"bare/{WIDTHS[name]}/{workers + n}") for n in range(SERVERS)]
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
    taken = _together(place, name, workers, lambda: [update() for _ in range(count // workers)])
    for link in links:
        link.close()
    return count / taken


def _together(place: Any, name: str, workers: int, act: Callable[[], object]) -> float:
    """Seconds from when all workers stand ready to when the last has done."""
    for when in ("ready", "done"):
        cluster.post(place, f"bare/{WIDTHS[name]}/{when}/{place.rank}", b"1")
        for rank in range(workers):
            cluster.posted(place, f"bare/{WIDTHS[name]}/{when}/{rank}")
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


def by_torch(workers: int, counts: Counts) -> dict[str, float]:
    """dream's servers in PyTorch."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    found = {}
    for name, count in counts.items():
        with dream.strategy("parameter_server", workers=workers, servers=SERVERS) as strategy:
            model, x, y = _torch_model(WIDTHS[name])
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
            step = strategy.train_step(model, torch.nn.functional.mse_loss, optimizer)

            def passes(number: int, x: Any = x, y: Any = y) -> Any:
                rows = TensorDataset(x.repeat(number, 1), y.repeat(number, 1))
                return DataLoader(rows, batch_size=BATCH)

            found[name] = _second_pass(step, [passes(workers), passes(count)], count)
    return found


def by_tensorflow(workers: int, counts: Counts) -> dict[str, float]:
    """dream's servers in TensorFlow."""
    import keras

    found = {}
    for name, count in counts.items():
        with dream.strategy("parameter_server", workers=workers, servers=SERVERS) as strategy:
            model, optimizer = _keras_model(WIDTHS[name]), _keras_optimizer()
            step = strategy.train_step(model, keras.losses.MeanSquaredError(), optimizer)
            passes = [
                strategy.prepare(_rows(WIDTHS[name]).take(number)) for number in (workers, count)
            ]
            found[name] = _second_pass(step, passes, count)
    return found


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
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(width) for _ in range(2)]
    return keras.Sequential([keras.Input((width,)), *layers])


def _keras_optimizer() -> Any:
    import keras

    return keras.optimizers.SGD(1e-4, momentum=0.9)


def _rows(width: int) -> Any:
    """The same batch again and again."""
    import tensorflow as tf

    x, y = tf.random.normal((2, BATCH, width), seed=0)
    return tf.data.Dataset.from_tensors((x, y)).repeat()


def tensorflows_own(workers: int, counts: Counts) -> dict[str, float]:
    """ParameterServerStrategy with a custom loop. Rank 0 is the chief, who also waits."""
    import os

    import tensorflow as tf

    place = cluster.detect()
    ends = [str(end) for end in cluster.exchange_endpoints(place)]
    jobs = {"chief": ends[:1], "worker": ends[1 : workers + 1], "ps": ends[workers + 1 :]}
    spec = tf.train.ClusterSpec(jobs)
    if place.rank:
        name = "worker" if place.rank <= workers else "ps"
        number = place.rank - 1 - (0 if name == "worker" else workers)
        tf.distribute.Server(spec, name, number, protocol="grpc")
        while cluster.found(place, "raw/done") is None:
            time.sleep(0.5)
        return {}
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        spec, task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    found = {
        name: _scheduled(strategy, coordinator, WIDTHS[name], workers, count)
        for name, count in counts.items()
    }
    cluster.post(place, "raw/done", b"done")
    return found


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
