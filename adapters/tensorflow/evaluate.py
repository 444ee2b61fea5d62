"""Figures over every sample, each used once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import tensorflow as tf

from dream._adapter import Metric
from dream._errors import ConfigurationError
from dream.adapters.keras.forward import check_metric, forward
from dream.adapters.tensorflow.data import Shard, ShardedDataset, targets_of
from dream.adapters.tensorflow.errors import translated
from dream.adapters.tensorflow.loss import Batch, count_of, value_of
from dream.adapters.tensorflow.tracing import Compiled
from dream.collectives import Communicator
from dream.data.partition import split
from dream.mixed.order import Targets
from dream.mixed.resync import Resyncs

Metrics = tuple[tuple[str, Metric], ...]
Run = Callable[..., list[tf.Tensor]]
"""Calls a function on a batch's shares that are here: its value for each of them."""


def here(function: Callable[..., Any], batch: Batch) -> list[tf.Tensor]:
    """Call it on the one share that is here."""
    return [function(*batch)]


def evaluate(
    model: Any,
    data: Iterable[Any],
    metrics: Mapping[str, Metric],
    communicator: Communicator,
    shard: Shard,
    run: Run = here,
    *,
    resyncs: Resyncs | None = None,
) -> dict[str, float]:
    """The mean of each metric over every sample of `data`, the work shared by ranks and replicas.
    resyncs: where some ranks are of another framework; they take rank 0's weights before, and
    targets are compared at the end."""
    if resyncs is not None:
        resyncs.settle()
    compiled = _compiled(model, tuple(metrics.items()), run)
    total = tf.zeros(len(metrics) + 1, tf.float64)
    seen = Targets()
    for batch in _shares(data, shard, None if resyncs is None else seen, communicator.world_size):
        total += compiled(*batch)
    if resyncs is not None:
        seen.compare(communicator, "the data to evaluate")
    with translated():
        return means(metrics, communicator.all_reduce(total, "sum"))


def means(metrics: Mapping[str, Metric], total: Any) -> dict[str, float]:
    """total: what `sums` gives, added up over all batches; 0 where there is none."""
    *totals, count = np.broadcast_to(total, (len(metrics) + 1,)).tolist()
    if count == 0:
        raise ConfigurationError("There is nothing to evaluate. Received: data without samples.")
    return {name: value / count for name, value in zip(metrics, totals, strict=True)}


def checked(metrics: Mapping[str, Metric]) -> Metrics:
    for name, metric in metrics.items():
        check_metric(name, metric)
    return tuple(metrics.items())


@lru_cache(maxsize=8)
def _compiled(model: Any, metrics: Metrics, run: Run) -> Callable[..., tf.Tensor]:
    """Kept, so that an evaluation after every epoch is traced once."""
    checked(dict(metrics))

    def sums_of(*batch: Any) -> tf.Tensor:
        return sums(model, batch, metrics)

    def total(*batch: Any) -> tf.Tensor:
        return tf.add_n(run(sums_of, batch))

    return Compiled(total)


def _shares(data: Iterable[Any], shard: Shard, seen: Targets | None, parts: int) -> Iterator[Batch]:
    if seen is None:
        yield from data if isinstance(data, ShardedDataset) else map(shard, _tensors(data))
        return
    for batch in data.global_batches() if isinstance(data, ShardedDataset) else _tensors(data):
        seen.add_whole(targets_of(batch), parts)
        yield shard(batch)


def _tensors(data: Iterable[Any]) -> Iterable[Any]:
    return (tuple(tf.nest.map_structure(tf.convert_to_tensor, batch)) for batch in data)


def sums(model: Any, batch: Batch, metrics: Metrics) -> tf.Tensor:
    """Each metric summed over the share's samples, then their number. Shape (metrics + 1,)."""
    inputs, target = split(batch)
    count = tf.cast(count_of(batch), tf.float64)
    prediction = forward(model, inputs, training=False)
    totals = [
        tf.where(count > 0, _total(name, value_of(metric, prediction, target)), 0.0)
        for name, metric in metrics
    ]
    return tf.stack([*totals, count])


def _total(name: str, values: tf.Tensor) -> tf.Tensor:
    if values.shape.rank != 1:
        raise ConfigurationError(
            f"Metric {name!r} must give one value for each sample. Received: shape "
            f"{tuple(values.shape)}. Return a tensor of shape (samples,)."
        )
    return tf.reduce_sum(tf.cast(values, tf.float64))
