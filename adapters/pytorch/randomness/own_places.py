"""Numbers of rows that were worked out of how many this rank has, or drawn up to that: they pick
its own rows, and one device would pick of the whole batch's."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

_known: MutableMapping[torch.Tensor, str] = WeakIdKeyDictionary()


def note(x: torch.Tensor, name: str) -> None:
    """name: of the function that has made such numbers."""
    _known[x] = f"numbers by {name}"


def made_by(x: Any) -> str:
    """Return what has made these, in words; nothing for other numbers."""
    return _known.get(x, "") if isinstance(x, torch.Tensor) else ""
