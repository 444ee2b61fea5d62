"""The explicit step of an update in micro-batches: it takes this rank's whole share, and cuts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any, final

import torch
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from dream._adapter import Step
from dream._batch import split
from dream._errors import ConfigurationError
from dream._partition import Share, micro_shares
from dream.adapters.pytorch.data_parallel import rows_of
from dream.adapters.pytorch.knobs.scaling import Scaling
from dream.adapters.pytorch.knobs.updates import Updates
from dream.adapters.pytorch.root import Root
from dream.adapters.pytorch.shares import Shares
from dream.adapters.pytorch.step import check_scalar
from dream.adapters.pytorch.weighing import count_of
from dream.communication import Communicator

Batch = tuple[Any, ...]


def accumulated_step(
    root: Root,
    loss: Callable[..., Any],
    optimizer: Optimizer,
    cut: Cut,
    updates: Updates,
    scaling: Scaling | None,
) -> Step:
    """One communication: gradients and the loss travel with the last micro-batch."""
    updates.leave_to_step()

    def step(*batch: Any) -> torch.Tensor:
        micros = cut(batch)
        updates.begin_whole()
        optimizer.zero_grad(set_to_none=True)
        for index, (micro, weight) in enumerate(micros):
            inputs, target = split(micro)
            output, carried = root.call_with_carrier(
                inputs, empty=weight == 0.0, first=index == 0, last=index == len(micros) - 1
            )
            value = check_scalar(loss(output, target)) * weight
            backward = torch.autograd.backward if scaling is None else scaling.backward
            backward((value, carried), (None, value.detach().to(carried.dtype)))
        optimizer.step()
        return root.carried

    return step


@final
class Cut:
    """A batch -> its micro-batches, each with what its mean loss counts for.

    weight: counts the things of a batch; None goes by samples.
    """

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
