"""Read and write sizes in bytes as people do. A KB has 1024 bytes, as in NCCL's tests."""

from __future__ import annotations

import re

from dream._errors import ConfigurationError

_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:I?B)?", re.IGNORECASE)


def parse(text: str) -> int:
    """`200KB` in bytes."""
    found = _WRITTEN.fullmatch(text.strip())
    size = round(float(found[1]) * _UNITS[f"{found[2].upper()}B"]) if found else 0
    if not size:
        raise ConfigurationError(
            f"This is no size. Received: {text!r}. Write it like 4KB, 200KB, 1MB or 1.5GB."
        )
    return size


def show(size: float) -> str:
    """`200 KB`, with one digit after the point where there is one."""
    unit = next((name for name in reversed(_UNITS) if size >= _UNITS[name]), "B")
    return f"{round(size / _UNITS[unit], 1):g} {unit}"
