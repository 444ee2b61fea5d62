"""What the copies of a module give for their parts of a batch, and whether it is one output."""

from __future__ import annotations

from typing import Any

import torch

from dream.adapters.pytorch.data.reading.rows import rows_of
from dream.adapters.pytorch.private import tree_leaves, tree_map

_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, type, torch.dtype, torch.device, torch.Size,
)  # fmt: skip
"""What is no part's, if all parts give the same. Anything else may hold a part's rows."""


def misfit(outputs: list[Any]) -> str:
    """Why they do not come together as one, in words that follow the module's name; empty where
    they do."""
    found: list[str] = []
    try:
        tree_map(lambda *parts: found.append(_misfit(parts)), *outputs)
    except (ValueError, TypeError):
        return "gives outputs of another structure for parts of a batch"
    return next(filter(None, found), "")


def _misfit(parts: tuple[Any, ...]) -> str:
    first = parts[0]
    if isinstance(first, torch.Tensor):
        shapes = {x.shape[1:] if isinstance(x, torch.Tensor) else None for x in parts}
        return "" if len(shapes) == 1 else "gives outputs whose sizes differ over parts of a batch"
    if type(first) not in _PLAIN:
        return f"gives objects (of type {type(first).__name__}) whose parts dream cannot join"
    alike = all(type(x) is type(first) and x == first for x in parts)
    return "" if alike else "gives numbers, or words, that differ over parts of a batch"


def have_rows(outputs: list[Any], parts: list[Any]) -> bool:
    """Whether they have a row for each of a part's."""
    return all(
        x.dim() > 0 and len(x) == rows_of(part)
        for output, part in zip(outputs, parts, strict=True)
        for x in tree_leaves(output)
        if isinstance(x, torch.Tensor)
    )


def equal(gathered: Any, whole: Any) -> bool:
    """Alike but for rounding."""
    one, other = tree_leaves(gathered), tree_leaves(whole)
    return len(one) == len(other) and all(map(_close, one, other))


def _close(x: Any, y: Any) -> bool:
    if not (isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)):
        return type(x) is type(y) and bool(x == y)
    near = max(1e-3, _eps(x)), max(1e-5, _eps(x))
    return x.shape == y.shape and torch.allclose(x, y, *near, equal_nan=True)


def _eps(x: torch.Tensor) -> float:
    return 8 * torch.finfo(x.dtype).eps if x.is_floating_point() else 0.0
