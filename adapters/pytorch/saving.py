"""torch.save and torch.load of named files in the block: written whole, by the rank whose file it
is, and read once rank 0 has written it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from dream.files import saves as job_saves


def enter(replace: Callable[[Any, str, Any], None]) -> None:
    """Change both. What goes to an open file or buffer, or comes from one, stays torch's own."""
    saves = job_saves.here()
    replace(torch, "save", _saving(torch.save, saves))
    replace(torch, "load", _loading(torch.load, saves))


def _saving(save: Any, saves: job_saves.Saves) -> Any:
    @wraps(save)
    def save_once(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):
            save(obj, f, *args, **kwargs)
            return

        def fill(part: Path) -> None:
            with part.open("wb") as file:
                save(obj, file, *args, **kwargs)

        saves.save(f, fill)

    return save_once


def _loading(load: Any, saves: job_saves.Saves) -> Any:
    @wraps(load)
    def load_after(f: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(f, (str, os.PathLike)):
            saves.before_reading(f)
        return load(f, *args, **kwargs)

    return load_after
