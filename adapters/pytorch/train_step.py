"""The explicit step: micro-batches passed forward and backward, then the optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer

from dream._adapter import Loss, Step, Weight
from dream._errors import ConfigurationError
from dream.adapters.pytorch import devices
from dream.adapters.pytorch.data.reading.rows import cut_rows, rows_of
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.update.accumulation import Updates
from dream.adapters.pytorch.update.weigh import count_of, weight_of
from dream.collectives import Communicator
from dream.data.partition import Share, micro_shares, split

Batch = tuple[Any, ...]
Cuts = Callable[[Batch], Sequence[tuple[Batch, Any]]]
"""A rank's batch -> micro-batches, each with what its mean loss counts for, or its `MicroPart`."""


@final
@dataclass(frozen=True, slots=True)
class MicroPart:
    """What is known of a micro-batch. share: of the global batch; None for a whole batch, which
    every rank has. count: things that its loss is a mean over, where the user says so."""

    share: Share | None
    count: float | None = None


class Passes(ABC):
    """A model's passes forward and backward, which leave the global gradient in its parameters."""

    @abstractmethod
    def run(self, batch: Batch, weight: Any, *, first: bool, last: bool) -> None:
        """Those of one micro-batch. weight: as the cuts give it. first, last: of an update; the
        gradient is global after the last one."""

    @abstractmethod
    def told(self) -> torch.Tensor:
        """The global mean loss of the last update, shape ()."""


def step_of(
    model: nn.Module, passes: Passes, optimizer: Optimizer, cut: Cuts, updates: Updates | None,
    device: torch.device | None = None,
) -> Step:  # fmt: skip
    """updates: None where a batch is not cut. device: what the model is computed on, if it lies
    elsewhere."""
    if updates is not None:
        updates.leave_to_step()

    def step(*batch: Any) -> torch.Tensor:
        micros = cut(batch)
        if updates is not None:
            updates.begin_whole()
        optimizer.zero_grad(set_to_none=True)
        for index, (micro, weight) in enumerate(micros):
            own = devices.beside(model, micro, device)
            passes.run(own, weight, first=index == 0, last=index == len(micros) - 1)
        optimizer.step()
        return passes.told()

    return step


def uncut(weigh: Callable[[Batch], float]) -> Cuts:
    """The batch as it is."""
    return lambda batch: [(batch, weigh(batch))]


def cuts_of(most: int, communicator: Communicator, shares: Shares, weight: Weight | None) -> Cuts:
    """Choose how a step cuts its batches. most: micro-batches. communicator: the ranks that batches
    are dealt to. weight: counts the things of a batch; None goes by samples."""
    if most > 1:
        return MicroBatches(most, communicator, shares, weight)
    if weight is None:
        return uncut(shares.weight)
    return uncut(lambda batch: weight_of(communicator, count_of(weight(*batch))))


@final
class MicroParts:
    """As many micro-batches on every rank, each with its part of the global batch: `most`, or as
    many as there are samples."""

    def __init__(self, most: int, shares: Shares, weight: Weight | None) -> None:
        self.most, self._shares, self._weight = most, shares, weight

    def __call__(self, batch: Batch) -> list[tuple[Batch, MicroPart]]:
        if self.most == 1:
            return [(batch, self._part(batch, self._shares.of(batch)))]
        shares = micro_shares(self._share(batch), self.most)
        edges = [*accumulate((share.count for share in shares), initial=0)]
        micros = [cut_rows(batch, first, stop) for first, stop in pairwise(edges)]
        return [(m, self._part(m, share)) for m, share in zip(micros, shares, strict=True)]

    def _part(self, batch: Batch, share: Share | None) -> MicroPart:
        return MicroPart(share, None if self._weight is None else count_of(self._weight(*batch)))

    def _share(self, batch: Batch) -> Share:
        """Batches that are cut by hand count as equal shares, and are the rank's own business."""
        share = self._shares.of(batch)
        if share is None:
            rows = rows_of(batch) or 0
            return Share(rows, rows, 1)
        if share.micros > 1:
            raise ConfigurationError(
                "A step takes this rank's whole share and cuts it itself. Received: micro-batch "
                f"{share.micro + 1} of {share.micros}, of a loop over the loader that began before "
                "the step was made. Call strategy.train_step before the loop."
            )
        return share


@final
class MicroBatches:
    """Micro-batches that each have their weight."""

    def __init__(
        self,
        most: int,
        communicator: Communicator,
        shares: Shares,
        weight: Weight | None,
    ) -> None:
        self._parts, self._communicator = MicroParts(most, shares, weight), communicator

    def __call__(self, batch: Batch) -> list[tuple[Batch, float]]:
        parts = self._parts(batch)
        counts = [part.count for _, part in parts if part.count is not None]
        weights = self._counted(counts) if counts else [p.share.weight for _, p in parts if p.share]
        return list(zip([micro for micro, _ in parts], weights, strict=True))

    def _counted(self, counts: list[float]) -> list[float]:
        own = torch.tensor(sum(counts), dtype=torch.float64)
        total = float(self._communicator.all_reduce(own, op="sum"))
        scale = self._communicator.world_size / total if total else 0.0
        return [count * scale for count in counts]


def plain_step(model: nn.Module, loss: Loss, optimizer: Optimizer) -> Step:
    """One device: the loop's own five lines."""

    def step(*batch: Any) -> torch.Tensor:
        inputs, target = split(devices.beside(model, batch))
        optimizer.zero_grad(set_to_none=True)
        value = check_scalar(loss(model(*inputs), target))
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def check_scalar(value: Any) -> torch.Tensor:
    """The loss of a batch is one number."""
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise ConfigurationError(
            "The loss of a batch must be a scalar, the mean over its samples. Received: "
            f"{getattr(value, 'shape', type(value).__name__)}. Take its mean."
        )
    return value if value.dim() == 0 else value.reshape(())
