"""Files of a distributed model: rank 0 alone writes them, by a rename, and nobody waits."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import MethodType
from typing import Any

_SUFFIXES = (".keras", ".weights.h5", ".h5")


def distribute(model: Any, rank: int) -> None:
    """`save`, `save_weights` and `export` that write on rank 0 only."""
    for name in ("save", "save_weights", "export"):
        setattr(model, name, MethodType(_once(name, rank), model))


def _once(name: str, rank: int) -> Callable[..., Any]:
    def write(self: Any, *args: Any, **kwargs: Any) -> Any:
        return on_rank(getattr(type(self), name), name, rank)(self, *args, **kwargs)

    write.__name__ = name
    return write


def on_rank(save: Callable[..., Any], name: str, rank: int) -> Callable[..., Any]:
    """A function that saves a model, made to write on rank 0 only. What goes to an open file or
    buffer stays each rank's own."""

    @wraps(save)
    def write(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(filepath, (str, os.PathLike)):
            return save(self, filepath, *args, **kwargs)
        if rank != 0:
            return None
        path = Path(filepath)
        part = _beside(path)
        if not _takes_a_part(name, path, args, kwargs):
            return save(self, filepath, *args, **kwargs)
        try:
            result = save(self, part, *args, **kwargs)
            part.replace(path)
            return result
        finally:
            _remove(part)

    return write


def _beside(path: Path) -> Path:
    """A name in the same folder that Keras takes for the same kind of file."""
    return path.with_name(f".part{os.getpid()}.{path.name}")


def _takes_a_part(name: str, path: Path, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the writing goes to one file that a rename can put in place. Folders, sharded
    weights, remote paths and a question before overwriting are left to Keras."""
    if name == "export" or "://" in str(path) or not path.name.endswith(_SUFFIXES):
        return False
    asks = (args[0] if args else kwargs.get("overwrite", True)) is not True
    return not (asks or kwargs.get("max_shard_size") or kwargs.get("zipped") is False)


def _remove(part: Path) -> None:
    if part.is_dir():
        shutil.rmtree(part)
    else:
        part.unlink(missing_ok=True)
