"""A rank's share of a batch, cut into the micro-batches of an update."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any, final

import torch
from torch.utils._pytree import tree_map

from dream._errors import ConfigurationError
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.parallel.replicas.data_parallel import rows_of
from dream.adapters.pytorch.passes import Batch, Cuts, uncut
from dream.adapters.pytorch.weighing import BatchWeight, count_of
from dream.collectives import Communicator
from dream.data.partition import Share, micro_shares


def cuts_of(
    most: int, communicator: Communicator, shares: Shares, weight: Callable[..., Any] | None
) -> Cuts:
    """How a step cuts its batches. most: micro-batches. communicator: the ranks that batches are
    dealt to. weight: counts the things of a batch; None goes by samples."""
    if most > 1:
        return Cut(most, communicator, shares, weight)
    return uncut(BatchWeight(communicator, shares.weight, weight))


@final
class Cut:
    """As many micro-batches on every rank."""

    def __init__(
        self,
        most: int,
        communicator: Communicator,
        shares: Shares,
        weight: Callable[..., Any] | None,
    ) -> None:
        self._most, self._communicator, self._shares = most, communicator, shares
        self._weight = weight

    def __call__(self, batch: Batch) -> list[tuple[Batch, float]]:
        shares = micro_shares(self._share(batch), self._most)
        edges = [*accumulate((share.count for share in shares), initial=0)]
        micros = [tree_map(_rows(start, stop), batch) for start, stop in pairwise(edges)]
        if self._weight is None:
            weights = [share.weight for share in shares]
        else:
            weights = self._counted([count_of(self._weight(*micro)) for micro in micros])
        return list(zip(micros, weights, strict=True))

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

    def _counted(self, counts: list[float]) -> list[float]:
        own = torch.tensor(sum(counts), dtype=torch.float64)
        total = float(self._communicator.all_reduce(own, op="sum"))
        scale = self._communicator.world_size / total if total else 0.0
        return [count * scale for count in counts]


def _rows(start: int, stop: int) -> Callable[[Any], Any]:
    return lambda x: x[start:stop] if isinstance(x, torch.Tensor) and x.dim() else x
