"""Figures over every sample, each used once, the work shared by the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from dream._adapter import Metric
from dream._errors import ConfigurationError
from dream.adapters.pytorch import devices
from dream.adapters.pytorch.data.digests import targets_of
from dream.adapters.pytorch.data.loader import dealt_of
from dream.collectives import Communicator
from dream.data.partition import split
from dream.mixed.order import Targets
from dream.mixed.resync import Resyncs

ELSEWHERE = object()
"""A prediction that another rank has, which takes its figures."""


def evaluate(
    model: nn.Module,
    data: Iterable[Any],
    metrics: Mapping[str, Metric],
    communicator: Communicator,
    *,
    resyncs: Resyncs | None = None,
    predict: Callable[[tuple[Any, ...]], Any] | None = None,
    total: Communicator | None = None,
    together: bool = False,
    device: torch.device | None = None,
) -> dict[str, float]:
    """The mean of each metric over every sample of `data`.

    communicator: the ranks that the data is dealt to. resyncs: where some ranks are of another
    framework; they take rank 0's weights before, and targets are compared at the end. predict:
    the model's call on a batch's inputs, where it is not a call. total: the ranks whose figures
    are added up, where they are others. together: the ranks help each other in the model's calls,
    so those without a sample call it too. device: what the model is computed on, if it lies
    elsewhere.
    """
    run = predict or (lambda inputs: model(*inputs))
    if resyncs is not None:
        resyncs.settle()
    seen = Targets()
    spare: tuple[Any, ...] | None = None
    sums = torch.zeros(len(metrics) + 1, dtype=torch.float64)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for batch in _shared(data, communicator):
                batch = devices.beside(model, tuple(batch), device)
                sums += _sums(run, batch, metrics)
                if together:
                    spare = _call_along(model, batch, spare)
                if resyncs is not None:
                    seen.add(communicator.rank, targets_of(batch))
    finally:
        model.train(training)
    if resyncs is not None:
        seen.compare(communicator, "the data to evaluate")
    *totals, count = (total or communicator).all_reduce(sums, op="sum").tolist()
    if count == 0:
        raise ConfigurationError("There is nothing to evaluate. Received: data without samples.")
    return {name: total / count for name, total in zip(metrics, totals, strict=True)}


def _sums(
    run: Callable[[tuple[Any, ...]], Any], batch: Any, metrics: Mapping[str, Metric]
) -> torch.Tensor:
    """Each metric summed over the batch's samples, then their number. Shape (metrics + 1,)."""
    inputs, target = split(batch)
    count = len(target)
    prediction = run(inputs) if count else ELSEWHERE
    if prediction is ELSEWHERE:
        return torch.zeros(len(metrics) + 1, dtype=torch.float64)
    values = [_total(name, metric(prediction, target), count) for name, metric in metrics.items()]
    return torch.tensor([*values, count], dtype=torch.float64)


def _call_along(
    model: nn.Module, batch: Any, spare: tuple[Any, ...] | None
) -> tuple[Any, ...] | None:
    """Where a batch is empty, have the model called on a sample seen before, which counts for
    nothing; on no sample where there was none yet. Inputs of one sample to do that with next."""
    inputs, target = split(batch)
    if len(target):
        return tuple(x[:1] if isinstance(x, torch.Tensor) and x.dim() else x for x in inputs)
    model(*(inputs if spare is None else spare))
    return spare


def _total(name: str, values: torch.Tensor, count: int) -> float:
    if values.shape != (count,):
        raise ConfigurationError(
            f"Metric {name!r} must give one value for each sample. Received: shape "
            f"{tuple(values.shape)} for {count} samples. Return a tensor of shape ({count},)."
        )
    return float(values.to(torch.float64).sum())


def _shared(data: Iterable[Any], communicator: Communicator) -> Iterator[Any]:
    """This rank's part of the data: a dealt loader deals, anything else is cut by hand."""
    dealt = dealt_of(data)
    if dealt is not None:
        with dealt.reads.told("share"):
            batches = iter(data)
        yield from batches
        return
    for batch in data:
        yield tuple(part[communicator.rank :: communicator.world_size] for part in batch)
