"""Files of models: written whole, by the rank whose file it is, and read once rank 0 has written
them. Nobody waits to write."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import MethodType
from typing import Any

from dream import cluster
from dream.files import saves

_SUFFIXES = (".keras", ".weights.h5", ".h5", ".hdf5")


def distribute(model: Any) -> None:
    """Change `save`, `save_weights`, `export` and `load_weights` on the instance."""
    for name in ("save", "save_weights", "export"):
        change(model, name, writing)
    change(model, "load_weights", reading)


def change(model: Any, name: str, how: Callable[[Callable[..., Any], str], Any]) -> None:
    """Have a method of one model be `how` of its class's."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return how(getattr(type(self), name), name)(self, *args, **kwargs)

    method.__name__ = name
    setattr(model, name, MethodType(method, model))


def writing(save: Callable[..., Any], name: str, *, follow: bool = False) -> Callable[..., Any]:
    """Have a function that saves a model write where the file is this rank's. What goes to an open
    file or buffer stays each rank's own. follow: rank 0 alone can write it, as it is with folders
    and remote paths."""

    @wraps(save)
    def write(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(filepath, (str, os.PathLike)):
            return save(self, filepath, *args, **kwargs)
        if not _takes_a_part(name, Path(filepath), args, kwargs):
            return save(self, filepath, *args, **kwargs) if cluster.detect().rank == 0 else None

        def fill(part: Path) -> Any:
            return save(self, part, *args, **kwargs)

        return saves.here().save(filepath, fill, follow=follow)

    return write


def reading(load: Callable[..., Any], _: str) -> Callable[..., Any]:
    """Have a function that loads a model or its weights wait for rank 0's file."""

    @wraps(load)
    def read(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        path = next((each for each in given if isinstance(each, (str, os.PathLike))), None)
        if path is not None and "://" not in str(path):
            saves.here().before_reading(path)
        try:
            return load(*args, **kwargs)
        except (OSError, ValueError) as error:
            if path is not None:
                _explain(error, Path(path))
            raise

    return read


_left: dict[Path, str] = {}
"""Folders that callbacks would have written to, had this been rank 0; and those, by name."""


def left_to_rank_0(filepath: str | os.PathLike[str], writer: str) -> None:
    """Note that a callback writes files of this path on rank 0 alone."""
    _left[Path(filepath).absolute().parent] = writer


def _explain(error: Exception, path: Path) -> None:
    """Say of a file that is not there why it is not."""
    writer = _left.get(path.absolute().parent)
    if writer is not None and not path.exists():
        error.add_note(
            f"dream: {writer} writes on rank 0 alone, and rank {cluster.detect().rank} finds no "
            f"such file. Received: {path}. Give all ranks one folder; one that tempfile makes is "
            "another on each rank. strategy.communicator.broadcast_object tells them rank 0's."
        )


def _takes_a_part(name: str, path: Path, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the writing goes to one file that a rename can put in place. Folders, sharded
    weights, remote paths and a question before overwriting are left to Keras."""
    if name == "export" or "://" in str(path) or not path.name.endswith(_SUFFIXES):
        return False
    asks = (args[0] if args else kwargs.get("overwrite", True)) is not True
    return not (asks or kwargs.get("max_shard_size") or kwargs.get("zipped") is False)
