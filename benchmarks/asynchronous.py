"""`parameter_server` beside a bare push and pull in PyTorch and beside TensorFlow's own strategy,
and what a slow worker costs.

python benchmarks/asynchronous.py            all figures
python benchmarks/asynchronous.py --only torch
python benchmarks/asynchronous.py --steps 300 --rounds 5
python benchmarks/asynchronous.py --only many --workers 8    two servers, models of 1 MB and 100 MB

The bare loop pushes a flat gradient over a socket to a process that steps the same optimizer and
sends the parameters back: no clocks, no leases, no faults. Blocks of both are interleaved in one
run, and the median of the ratios is told.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream

WIDTH, BATCH = 64, 64


def net() -> nn.Module:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return nn.Sequential(nn.Linear(784, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))


def data(batches: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(batches * BATCH, 784, generator=draw)
    return TensorDataset(x, x[:, :10].argmax(1))


def read(connection: socket.socket, view: memoryview) -> bool:
    while view:
        count = connection.recv_into(view)
        if not count:
            return False
        view = view[count:]
    return True


def serve_bare(listener: socket.socket) -> None:
    """One worker's gradients, each a step, until it hangs up."""
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    model = net()
    own = list(model.parameters())
    flat = torch.cat([p.detach().ravel() for p in own])
    gradient = torch.zeros_like(flat)
    sizes = [p.numel() for p in own]
    for p, value, grad in zip(own, flat.split(sizes), gradient.split(sizes), strict=True):
        p.data, p.grad = value.view(p.shape), grad.view(p.shape)
    optimizer = torch.optim.SGD(own, lr=0.1, momentum=0.9)
    while read(connection, memoryview(gradient.numpy()).cast("B")):
        optimizer.step()
        connection.sendall(memoryview(flat.numpy()).cast("B"))


def bare_worker(port: int, steps: int) -> float:
    """Updates a second."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    model = net()
    own = list(model.parameters())
    flat = torch.cat([p.detach().ravel() for p in own])
    gradient = torch.zeros_like(flat)
    sizes = [p.numel() for p in own]
    pulled = [v.view(p.shape) for p, v in zip(own, flat.split(sizes), strict=True)]
    pushed = [g.view(p.shape) for p, g in zip(own, gradient.split(sizes), strict=True)]
    loader = DataLoader(data(40), batch_size=BATCH, shuffle=True)
    done = 0
    begin = 0.0
    while done < steps:
        for x, y in loader:
            if done == 20:
                begin = time.perf_counter()
            model.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            loss.item()
            torch._foreach_copy_(pushed, [p.grad for p in own])
            connection.sendall(memoryview(gradient.numpy()).cast("B"))
            read(connection, memoryview(flat.numpy()).cast("B"))
            torch._foreach_copy_([p.detach() for p in own], pulled)
            done += 1
    connection.close()
    return (done - 20) / (time.perf_counter() - begin)


def bare(steps: int) -> float:
    """Rank 0 works, rank 1 serves."""
    from dream import cluster

    place = cluster.detect()
    if place.rank == 1:
        listener = socket.create_server(("127.0.0.1", 0))
        cluster.post(place, "bare/port", str(listener.getsockname()[1]).encode())
        serve_bare(listener)
        return 0.0
    return bare_worker(int(cluster.posted(place, "bare/port")), steps)


def dreamt(steps: int) -> float:
    with dream.strategy("parameter_server") as strategy:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        step = strategy.train_step(model, F.cross_entropy, optimizer)
        loader = DataLoader(data(40), batch_size=BATCH, shuffle=True)
        done, begin = 0, 0.0
        while done < steps:
            for batch in loader:
                if done == 20:
                    begin = time.perf_counter()
                step(*batch)
                done += 1
        return (done - 20) / (time.perf_counter() - begin)


def with_a_slow_one(name: str, options: dict[str, object], seconds: float) -> float:
    """Batches a second after a first pass; a whole batch takes `seconds`, and rank 1 four times as
    long. Sleeping stands for computing, so that two cores do not have to hold three processes."""
    passes, batches = 3, 60
    with dream.strategy(name, **options) as strategy:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        step = strategy.train_step(model, F.cross_entropy, optimizer)
        loader = DataLoader(data(batches), batch_size=BATCH, shuffle=True)
        factor = 4 if strategy.topology.rank == 1 else 1
        begin = 0.0
        for number in range(passes):
            if number == 1:
                begin = time.perf_counter()
            for x, y in loader:
                time.sleep(seconds * factor * len(x) / BATCH)
                step(x, y)
        taken = time.perf_counter() - begin
    return (passes - 1) * batches / taken


def launch(function: object, *args: object, n: int, on: str = "torch") -> float:
    found = dream.launch(function, *args, n=n, framework=on, timeout=200)  # type: ignore[arg-type]
    return float(found[0])


def beside_bare(rounds: int, steps: int) -> None:
    ratios = []
    for index in range(rounds):
        raw = launch(bare, steps, n=2)
        ours = launch(dreamt, steps, n=2)
        ratios.append(ours / raw)
        print(f"round {index}: bare {raw:.0f} updates/s, dream {ours:.0f}, {ours / raw:.3f}")
    print(f"torch, updates a second of a worker, dream / bare: {statistics.median(ratios):.3f}")


def beside_tensorflow(rounds: int, steps: int) -> None:
    import _asynchronous_tensorflow as ranks

    ratios = []
    for index in range(rounds):
        raw = launch(ranks.raw, steps, n=3, on="tensorflow")
        ours = launch(ranks.dreamt, steps, n=2, on="tensorflow")
        ratios.append(ours / raw)
        print(f"round {index}: raw {raw:.0f} updates/s, dream {ours:.0f}, {ours / raw:.3f}")
    print(
        "TensorFlow, updates a second of a worker, dream / ParameterServerStrategy: "
        f"{statistics.median(ratios):.3f}"
    )


def beside_synchronous(seconds: float) -> None:
    synchronous = launch(with_a_slow_one, "mirrored", {}, seconds, n=2)
    for bound in (None, 8):
        free = launch(with_a_slow_one, "parameter_server", {"staleness": bound}, seconds, n=3)
        print(
            f"one of two workers 4x slower, staleness={bound}: {free:.1f} batches/s, synchronous "
            f"{synchronous:.1f}, {free / synchronous:.2f} x"
        )


def many_workers(workers: int, counts: dict[str, int]) -> None:
    """Updates a second of all workers, by model; each contender once."""
    import _many_workers as ranks
    from _measure import table

    servers = ranks.SERVERS
    contenders = (
        ("bare push and pull", ranks.bare, 0, "torch"),
        ("dream, PyTorch", ranks.by_torch, 0, "torch"),
        ("dream, TensorFlow", ranks.by_tensorflow, 0, "tensorflow"),
        ("TensorFlow's own", ranks.tensorflows_own, 1, "tensorflow"),
    )
    rows = []
    for name, function, chiefs, on in contenders:
        n = chiefs + workers + servers
        rates = [launch(function, workers, *each, n=n, on=on) for each in counts.items()]
        rows.append((name, *(f"{rate:.2f}" for rate in rates)))
        print(*rows[-1], flush=True)
    head = (f"updates a second, {workers} workers, {servers} servers", *counts)
    print(table(head, rows, markdown=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--only", choices=("torch", "tensorflow", "slow", "many"))
    parser.add_argument("--workers", type=int, default=8, help="of `many`")
    parser.add_argument("--counts", type=int, nargs=2, default=(320, 32), help="updates of `many`")
    given = parser.parse_args()
    if given.only in (None, "torch"):
        beside_bare(given.rounds, given.steps)
    if given.only in (None, "tensorflow"):
        beside_tensorflow(given.rounds, given.steps)
    if given.only in (None, "slow"):
        beside_synchronous(given.seconds)
    if given.only in (None, "many"):
        many_workers(given.workers, dict(zip(("1 MB", "100 MB"), given.counts, strict=True)))


if __name__ == "__main__":
    main()
