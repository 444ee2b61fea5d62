"""torch.save of what a rank holds only a part of."""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch.distributed.tensor import DTensor, Replicate
from torch.utils._pytree import tree_leaves

from dream._errors import ConfigurationError


def refusing_parts(save: Any) -> Any:
    """`torch.save` that writes whole tensors only: a file of shards would be read as a model."""

    @wraps(save)
    def wrapped(obj: object, *args: Any, **kwargs: Any) -> None:
        for leaf in tree_leaves(obj):
            if isinstance(leaf, DTensor) and not all(p == Replicate() for p in leaf.placements):
                raise ConfigurationError(
                    "This rank holds a part of the tensor, and would write that part alone. "
                    f"Received: a tensor of shape {tuple(leaf.shape)}, of which "
                    f"{tuple(leaf.to_local().shape)} is here. Save strategy.full_state(model); or "
                    "make each tensor whole with .full_tensor(), on every rank, before rank 0 "
                    "saves it."
                )
        save(obj, *args, **kwargs)

    return wrapped
