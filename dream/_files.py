"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


def write_whole(path: Path, fill: Callable[[IO[bytes]], Any]) -> None:
    """What `fill` writes into the open file it is given is at `path` once all of it is there."""
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        fill(file)
    os.replace(part, path)  # noqa: PTH105
