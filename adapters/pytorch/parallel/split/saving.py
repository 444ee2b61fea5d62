"""torch.save of what a rank holds only a part of."""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch.utils._pytree import tree_leaves

from dream._errors import ConfigurationError
from dream.adapters.pytorch.parallel.split.in_parts import why_not_saved


def refusing_parts(save: Any) -> Any:
    """`torch.save` that writes whole tensors only: a file of shards would be read as a model.

    It raises on every rank, where a pickler would on the one that writes.
    """

    @wraps(save)
    def wrapped(obj: object, *args: Any, **kwargs: Any) -> None:
        for leaf in tree_leaves(obj):
            said = why_not_saved(leaf)
            if said is not None:
                raise ConfigurationError(said)
        save(obj, *args, **kwargs)

    return wrapped
