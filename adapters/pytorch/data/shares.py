"""The share of a global batch that a forward pass works on.

A loader says so as it yields; the tensors it yields remember it too, so that batches which are
read ahead, or kept in a list, still carry their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final
from weakref import ref

import torch

from dream._errors import ConfigurationError
from dream.adapters.pytorch.private import tree_leaves, tree_map
from dream.data.partition import Share


@final
class Shares:
    """The share of the batch that was yielded last, and those of the tensors still alive."""

    def __init__(self) -> None:
        self._current: Share | None = None
        self._marked: dict[int, tuple[ref[torch.Tensor], Share]] = {}

    def yielded(self, batch: object, share: Share) -> None:
        """A loader hands out `batch`."""
        self._current = share
        self._mark(batch, share)

    def ended(self) -> None:
        """No loader is being read: what comes now is not a dealt batch."""
        self._current = None

    def weight(self, inputs: Iterable[object]) -> float:
        """Weigh this rank's gradient: by that of the first marked input, else that of the
        batch yielded last, else an equal share's."""
        share = self.of(inputs)
        return 1.0 if share is None else share.weight

    def count(self, inputs: Iterable[object]) -> int | None:
        """Count this rank's samples likewise; None for what is no dealt batch."""
        share = self.of(inputs)
        return None if share is None else share.count

    def largest(self, inputs: Iterable[object]) -> int | None:
        """The largest share of the batch that any rank has; None for what is no dealt batch."""
        share = self.of(inputs)
        return None if share is None else -(-share.total // share.parts)

    def of(self, inputs: Iterable[object]) -> Share | None:
        """The share of a forward pass on `inputs`; None for what is no dealt batch."""
        for value in inputs:
            entry = self._marked.get(id(value))
            if entry is not None and entry[0]() is value:
                return entry[1]
        return self._current

    def _mark(self, batch: object, share: Share) -> None:
        if isinstance(batch, torch.Tensor):
            key = id(batch)
            self._marked[key] = (ref(batch, lambda _: self._marked.pop(key, None)), share)
        elif isinstance(batch, dict):
            for value in batch.values():
                self._mark(value, share)
        elif isinstance(batch, (list, tuple)):
            for value in batch:
                self._mark(value, share)


def rows_of(batch: Any) -> int | None:
    """Count the samples in a batch; None where there is no tensor of rows."""
    rows = {len(x) for x in tree_leaves(batch) if isinstance(x, torch.Tensor) and x.dim()}
    if len(rows) > 1:
        raise ConfigurationError(
            "A batch is cut along dim 0 of its tensors, so all must have a row for each sample. "
            f"Received: tensors of {sorted(rows)} rows."
        )
    return rows.pop() if rows else None


def cut_rows(batch: Any, first: int, stop: int) -> Any:
    """Take some rows of each tensor in a batch; what has none stays whole."""
    cut = slice(first, stop)
    return tree_map(lambda x: x[cut] if isinstance(x, torch.Tensor) and x.dim() else x, batch)


def empty(batch: Any) -> Any:
    """The batch of one sample without that sample: tensors lose their rows, lists their items."""
    if isinstance(batch, torch.Tensor):
        return batch[:0] if batch.dim() else batch
    if isinstance(batch, dict):
        return type(batch)({key: empty(value) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(empty(value) for value in batch))
    if isinstance(batch, (list, tuple)):
        inner = [empty(value) for value in batch]
        nested = any(isinstance(value, (torch.Tensor, dict, list, tuple)) for value in batch)
        return type(batch)(inner) if nested else type(batch)()
    return batch
