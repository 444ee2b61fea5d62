"""Whether the ranks that hold the parts of one copy work on the same samples."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from dream._errors import Desynchronized
from dream.collectives import Communicator


def check_alike(among: Communicator, inputs: Any) -> None:
    """Raise where a rank's inputs differ from those of the first rank of its copy."""
    said = among.all_gather_object([_told(x) for x in tree_leaves(inputs)])
    for rank, theirs in enumerate(said[1:], start=1):
        if theirs != said[0]:
            raise Desynchronized(
                "The ranks that hold the parts of one model must work on the same samples. "
                f"Received: inputs (shape, sum) {said[0]} on part 0, {theirs} on part {rank}. "
                "Give each the same batch: make the loader in the block, and seed what draws data."
            )


def _told(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return None
    total = x.detach().double().abs().sum() if not x.is_complex() else torch.tensor(0.0)
    return tuple(x.shape), float(total)
