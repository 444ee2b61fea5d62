"""torch.save inside the block: rank 0 alone writes, atomically, and nobody waits."""

from __future__ import annotations

import os
from functools import wraps
from pathlib import Path
from typing import Any

import torch


def on_rank(rank: int, save: Any = torch.save) -> Any:
    """`torch.save` that writes a named file on rank 0 only, into its place by a rename. What
    goes to an open file or buffer stays each rank's own."""

    @wraps(save)
    def save_once(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):
            save(obj, f, *args, **kwargs)
        elif rank == 0:
            _write(save, obj, Path(f), *args, **kwargs)

    return save_once


def _write(save: Any, obj: object, path: Path, *args: Any, **kwargs: Any) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        save(obj, part, *args, **kwargs)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
