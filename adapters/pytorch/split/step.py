"""The explicit training step of a split model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from dream._adapter import Step
from dream._batch import split
from dream.adapters.pytorch.errors import peers_may_fail
from dream.adapters.pytorch.split.data_sum import local_of
from dream.adapters.pytorch.split.penalties import ordinary_again
from dream.adapters.pytorch.split.root import SplitRoot
from dream.adapters.pytorch.step import check_scalar


def split_step(
    root: SplitRoot,
    loss: Callable[..., Any],
    optimizer: Optimizer,
    weight: Callable[[tuple[Any, ...]], float],
    group: ProcessGroup | None,
) -> Step:
    """Each rank of the group has its own share of a batch, and its loss counts for that much.
    None where there is one rank to a batch."""

    def step(*batch: Any) -> torch.Tensor:
        inputs, target = split(batch)
        counts = weight(batch)
        optimizer.zero_grad(set_to_none=True)
        output = root.run_weighed(root.inner, inputs, {}, 0.0 if counts == 0.0 else 1.0)
        value = check_scalar(loss(output, target))
        if isinstance(value, DTensor):  # a penalty on cut parameters, which is not to be scaled
            root.weigh(counts)
            mean = local_of(value.detach()) * counts
        else:
            value = value if counts == 1.0 else value * counts
            mean = value.detach().clone()
        mean = mean if counts else torch.zeros_like(mean)
        work = None if group is None else _sum_up(mean, group)
        with ordinary_again([value]):
            value.backward()
        optimizer.step()
        if work is None:
            return mean
        with peers_may_fail("the loss of a step"):
            work.wait()
        return mean.div_(distributed.get_world_size(group))

    return step


def _sum_up(loss: torch.Tensor, group: ProcessGroup) -> distributed.Work:
    """Begun before backward, whose time it takes no part of."""
    work: distributed.Work | None = distributed.all_reduce(loss, group=group, async_op=True)
    assert work is not None
    return work
