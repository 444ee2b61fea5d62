"""Figures over every sample, each used once, the work shared by the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from dream._adapter import Metric
from dream._batch import split
from dream._errors import ConfigurationError
from dream._order import Targets
from dream._resync import Resyncs
from dream.adapters.pytorch.sampling import DealtBatches
from dream.communication import Communicator


def evaluate(
    model: nn.Module,
    data: Iterable[Any],
    metrics: Mapping[str, Metric],
    communicator: Communicator,
    *,
    resyncs: Resyncs | None = None,
) -> dict[str, float]:
    """The mean of each metric over every sample of `data`. resyncs: where some ranks are of another
    framework; they take rank 0's weights before, and targets are compared at the end."""
    if resyncs is not None:
        resyncs.settle()
    seen = Targets()
    sums = torch.zeros(len(metrics) + 1, dtype=torch.float64)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for batch in _shared(data, communicator):
                sums += _sums(model, batch, metrics)
                if resyncs is not None:
                    seen.add(communicator.rank, targets_of(batch))
    finally:
        model.train(training)
    if resyncs is not None:
        seen.compare(communicator, "the data to evaluate")
    *totals, count = communicator.all_reduce(sums, op="sum").tolist()
    if count == 0:
        raise ConfigurationError("There is nothing to evaluate. Received: data with no sample.")
    return {name: total / count for name, total in zip(metrics, totals, strict=True)}


def _sums(model: nn.Module, batch: Any, metrics: Mapping[str, Metric]) -> torch.Tensor:
    """Each metric summed over the batch's samples, then their number. Shape (metrics + 1,)."""
    inputs, target = split(tuple(batch))
    count = len(target)
    if count == 0:
        return torch.zeros(len(metrics) + 1, dtype=torch.float64)
    prediction = model(*inputs)
    values = [_total(name, metric(prediction, target), count) for name, metric in metrics.items()]
    return torch.tensor([*values, count], dtype=torch.float64)


def targets_of(batch: Any) -> np.ndarray[Any, Any]:
    """What the loss of a batch is taken against: its last tensor."""
    last = [x for x in tree_leaves(batch) if isinstance(x, torch.Tensor)][-1].detach().cpu()
    return (last.float() if last.is_floating_point() else last).numpy()


def _total(name: str, values: torch.Tensor, count: int) -> float:
    if values.shape != (count,):
        raise ConfigurationError(
            f"Metric {name!r} must give one value for each sample. Received: shape "
            f"{tuple(values.shape)} for {count} samples. Return a tensor of shape ({count},)."
        )
    return float(values.to(torch.float64).sum())


def _shared(data: Iterable[Any], communicator: Communicator) -> Iterator[Any]:
    """This rank's part of the data: a dealt loader deals, anything else is cut by hand."""
    if isinstance(data, DataLoader) and isinstance(data.batch_sampler, DealtBatches):
        with data.batch_sampler.reading("share"):
            yield from data
        return
    for batch in data:
        yield tuple(part[communicator.rank :: communicator.world_size] for part in batch)
