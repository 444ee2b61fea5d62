"""How stale a row's updates were: told by the servers, or counted where replicas step alone."""

from __future__ import annotations

from collections import Counter

from dream import _spec
from dream.parameter_server.staleness import Staleness
from dream.tools.compare.meter import Learned, Meter


def of(request: str, learned: Learned, meter: Meter) -> Staleness | None:
    """None where no update is ever stale. request: the strategy, as `dream run --strategy` takes
    it."""
    name, given = _spec.parse_request(request)
    if name != "local_sgd":
        return learned.staleness
    options = _spec.find(name).resolve({k: v for k, v in given.items() if k == "every"})
    every, epochs = options["every"], max(1, len(meter.losses))
    assert isinstance(every, int)
    replicas = learned.topology.num_replicas
    return between_averages(meter.steps // epochs, epochs, every, replicas)


def between_averages(steps: int, epochs: int, every: int, replicas: int) -> Staleness:
    """Of replicas that are averaged on every so many steps, and after each epoch: what a gradient
    has not seen are the steps that the others made since. steps: of an epoch."""
    histogram: Counter[int] = Counter()
    apart = 0
    for step in range(1, steps * epochs + 1):
        histogram[apart * (replicas - 1)] += replicas
        apart = 0 if step % every == 0 or step % steps == 0 else apart + 1
    return Staleness(
        histogram=dict(sorted(histogram.items())),
        by_worker=dict.fromkeys(range(replicas), steps * epochs),
        lead=0,
        repeated=0,
        lost=0,
        joined=0,
    )
