"""The explicit training step of a split model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from dream._adapter import Step
from dream._batch import split
from dream.adapters.pytorch.split.penalties import refuse_cut
from dream.adapters.pytorch.split.root import SplitRoot
from dream.adapters.pytorch.step import check_scalar
from dream.communication import Communicator


def split_step(
    root: SplitRoot,
    loss: Callable[..., Any],
    optimizer: Optimizer,
    weight: Callable[[tuple[Any, ...]], float],
    dealt: Communicator,
) -> Step:
    """Each rank of `dealt` has its own share of a batch, and its loss counts for that much."""

    among = dealt.unchecked()

    def step(*batch: Any) -> torch.Tensor:
        inputs, target = split(batch)
        counts = weight(batch)
        optimizer.zero_grad(set_to_none=True)
        output = root.run_weighed(root.inner, inputs, {}, 0.0 if counts == 0.0 else 1.0)
        value = check_scalar(loss(output, target))
        refuse_cut(value, "train_step")
        if counts != 1.0:
            value = value * counts
        value.backward()
        optimizer.step()
        local = value.detach() if counts else torch.zeros_like(value)
        mean: torch.Tensor = among.all_reduce(local) if among.world_size > 1 else local
        return mean

    return step
