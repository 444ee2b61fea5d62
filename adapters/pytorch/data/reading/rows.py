"""Rows of collated batches: counted, cut, and left out."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from dream._errors import ConfigurationError
from dream.adapters.pytorch.private import tree_leaves, tree_map

_NONE: Mapping[int, torch.Tensor] = {}


def is_turned(one: torch.Tensor) -> bool:
    """Whether the samples are columns. one: of one sample."""
    return one.dim() > 1 and one.shape[0] != 1 and one.shape[1] == 1


def cut_batch(batch: Any, cut: slice, total: int, turned: Collection[int] = ()) -> Any:
    """Take the rows of a collated batch; None where it does not say which are whose: a tensor has
    neither as many rows as the batch samples, nor as many columns. turned: the ids of tensors whose
    columns are the samples, though they have as many rows."""
    sizes = [x for x in tensors_in(batch) if x.dim()]
    if not sizes or any(x.is_nested or total not in x.shape[:2] for x in sizes):
        return None
    return cut_parts(batch, cut, total, turned)


def rows(batch: torch.Tensor, cut: Any) -> torch.Tensor:
    """Take rows, laid out as a batch of their number would be: models call `view`."""
    part = batch[cut]
    return part.contiguous() if batch.is_contiguous() else part


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_in(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from tensors_in(value)


def cut_parts(
    batch: Any,
    cut: slice,
    total: int,
    turned: Collection[int],
    ends: Mapping[int, torch.Tensor] = _NONE,
) -> Any:
    if isinstance(batch, torch.Tensor):
        if not batch.dim():
            return batch
        if (own := ends.get(id(batch))) is not None:
            return own
        first = len(batch) == total and id(batch) not in turned
        return rows(batch, cut) if first else rows(batch, (slice(None), cut))
    if isinstance(batch, Mapping):
        made: Any = type(batch)
        return made(
            {key: cut_parts(value, cut, total, turned, ends) for key, value in batch.items()}
        )
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(cut_parts(value, cut, total, turned, ends) for value in batch))
    if isinstance(batch, (list, tuple)):
        if len(batch) == total and not any(
            len(x.shape) and total in x.shape[:2] for x in tensors_in(batch)
        ):
            return batch[cut]
        return type(batch)(cut_parts(value, cut, total, turned, ends) for value in batch)
    return batch


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
        if batch.is_nested:  # which takes no rows of itself
            return _empty_nested(batch)
        return batch[:0] if batch.dim() else batch
    if isinstance(batch, (dict, UserDict)):
        return type(batch)(zip(batch, _empty_parts(batch.values()), strict=True))
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*_empty_parts(batch))
    if isinstance(batch, (list, tuple)):
        if _has_items(batch):
            return type(batch)()
        inner = _empty_parts(batch)
        nested = any(isinstance(value, (torch.Tensor, dict, list, tuple)) for value in batch)
        return type(batch)(inner) if nested else type(batch)()
    own = is_dataclass(batch) and not isinstance(batch, type)
    return _empty_fields(batch) if own else batch


def _empty_parts(batch: Iterable[Any]) -> list[Any]:
    """Those of what a batch holds: where one has an item for each sample, so have others."""
    parts = [*batch]
    items = any(_has_items(x) or (_is_single(x) and _is_of_rows(x[0])) for x in parts)
    return [type(x)() if items and _is_single(x) else empty(x) for x in parts]


def _has_items(batch: Any) -> bool:
    """Whether it is a list of samples, as of the boxes of each picture: what torch joins holds no
    dict or tuple alone."""
    return _is_single(batch) and isinstance(batch[0], (dict, tuple))


def _is_of_rows(x: Any) -> bool:
    """Whether a tensor has not one row, as that of one sample would."""
    return isinstance(x, torch.Tensor) and not x.is_nested and x.shape[:1] != (1,)


def _is_single(batch: Any) -> bool:
    return isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields") and len(batch) == 1


def _empty_fields(batch: Any) -> Any:
    """That of a dataclass, where each of its tensors is seen to have a row for the sample; a graph
    has one for each of its nodes."""
    own = {field.name: getattr(batch, field.name, None) for field in fields(batch)}
    tensors = [x for x in own.values() if isinstance(x, torch.Tensor)]
    if not tensors or any(x.is_nested or x.shape[:1] != (1,) for x in tensors):
        return batch
    made = copy(batch)
    for name, value in own.items():
        if not isinstance(value, (str, bytes)):
            object.__setattr__(made, name, empty(value))  # it may be frozen
    return made


def _empty_nested(batch: Any) -> torch.Tensor:
    if batch.layout == torch.jagged:
        rows, offsets = batch.values()[:0], batch.offsets()[:1]
        return torch.nested.nested_tensor_from_jagged(rows, offsets)
    return torch.nested.nested_tensor([], dtype=batch.dtype, device=batch.device)
