"""What a torch module is found to be, and the parameters that keep their layout or turn it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch

from dream.model_description.layers import Part


@final
@dataclass
class Found:
    """A layer of a module. parts: the module's own name of a parameter or buffer -> its parts."""

    kind: str
    parts: Mapping[str, tuple[Part, ...]]
    settings: dict[str, Any] = field(default_factory=dict)
    suffix: str = ""
    channels_first: bool = False
    time_first: bool = False
    records: bool = True


def whole(module: Any, _prefix: str = "", **roles: str) -> dict[str, tuple[Part, ...]]:
    """Those of the named parameters that the module has, as they are."""
    return {
        f"{_prefix}{name}": part(value, role)
        for name, role in roles.items()
        for value in (getattr(module, name),)
        if value is not None
    }


def part(value: torch.Tensor, role: str, *steps: Any) -> tuple[Part, ...]:
    return (Part(role, tuple(value.shape), steps),)
