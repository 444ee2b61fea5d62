"""The explicit step's passes through a split model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import distributed
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor

from dream.adapters.pytorch.errors import peers_may_fail
from dream.adapters.pytorch.local import local_of
from dream.adapters.pytorch.parallel.split.penalties import ordinary_again
from dream.adapters.pytorch.parallel.split.root import SplitRoot
from dream.adapters.pytorch.passes import Batch, Passes
from dream.adapters.pytorch.step import check_scalar
from dream.adapters.pytorch.update.scaling import Scaling
from dream.data.partition import split


@final
class Summed(Passes):
    """Each rank of the group has its own share of a batch, and the loss is added up over it. None
    where there is one rank to a batch."""

    def __init__(
        self,
        root: SplitRoot,
        loss: Callable[..., Any],
        group: ProcessGroup | None,
        scaling: Scaling | None = None,
    ) -> None:
        self._root, self._loss, self._group = root, loss, group
        self._backward = torch.autograd.backward if scaling is None else scaling.backward
        self._mean = torch.zeros(())
        self._work: distributed.Work | None = None

    def run(self, batch: Batch, weight: float, *, first: bool, last: bool) -> None:
        inputs, target = split(batch)
        root = self._root
        root.follow(completes=last)
        output = root.run_weighed(
            root.inner, inputs, {}, 0.0 if weight == 0.0 else 1.0, counted=True
        )
        value = check_scalar(self._loss(output, target))
        if isinstance(value, DTensor):  # a penalty on cut parameters, which is not to be scaled
            root.weigh(weight)
            mean = local_of(value.detach()) * weight
        else:
            value = value if weight == 1.0 else value * weight
            mean = value.detach().clone()
        mean = mean if weight else torch.zeros_like(mean)
        self._mean = mean if first else self._mean + mean
        if last and self._group is not None:
            self._work = _sum_up(self._mean, self._group)
        with ordinary_again([value]):
            self._backward((value,))

    def told(self) -> torch.Tensor:
        if self._work is None or self._group is None:
            return self._mean
        with peers_may_fail("the loss of a step"):
            self._work.wait()
        self._work = None
        return self._mean.div_(distributed.get_world_size(self._group))


def _sum_up(loss: torch.Tensor, group: ProcessGroup) -> distributed.Work:
    """Begun before backward, whose time it takes no part of."""
    work: distributed.Work | None = distributed.all_reduce(loss, group=group, async_op=True)
    assert work is not None
    return work
