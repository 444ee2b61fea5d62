"""Files of a model that lies in parts: every rank takes part in reading it, rank 0 writes."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import keras

from dream._errors import Unsupported
from dream.adapters.keras import files as keras_files
from dream.adapters.keras import private
from dream.adapters.tensorflow.parallel.split.together import whole

_OF_LOGS = (keras.callbacks.CSVLogger, keras.callbacks.TensorBoard)
"""Callbacks that write logs, and read no weights."""


def distribute(model: Any, rank: int) -> None:
    """`save`, `save_weights` and `export` of a model, changed on the instance."""
    for name in ("save", "save_weights", "export"):
        keras_files.change(model, name, together(rank))
    keras_files.change(model, "load_weights", keras_files.reading)


def together(rank: int) -> Callable[[Callable[..., Any], str], Callable[..., Any]]:
    """What makes of a function that saves a model one that all ranks call, and rank 0 writes: the
    others do not hold it. What goes to an open file or buffer is each rank's own."""

    def writing(save: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(save)
        def write(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
            here = rank == 0 or not isinstance(filepath, (str, os.PathLike))
            with whole(self, here=here):
                own = keras_files.writing(save, name, follow=True)
                return own(self, filepath, *args, **kwargs)

        return write

    return writing


def callbacks_for(given: Any, rank: int, world_size: int) -> Any:
    """The callbacks of fit that run on this rank: all that may read weights, so on all ranks."""
    if world_size == 1:
        return given
    listed = isinstance(given, keras.callbacks.CallbackList)
    found = list(given.callbacks) if listed else private.tree.flatten(given or [])
    for callback in found:
        _check(callback, world_size)
    if rank == 0 or listed:
        return given
    return [c for c in found if not isinstance(c, _OF_LOGS)]


def _check(callback: Any, world_size: int) -> None:
    reads = isinstance(callback, keras.callbacks.TensorBoard) and callback.histogram_freq
    if reads or isinstance(callback, keras.callbacks.BackupAndRestore):
        what = "TensorBoard(histogram_freq=...)" if reads else "BackupAndRestore"
        raise Unsupported(
            "This callback reads weights on the rank that writes, and they lie on all ranks. "
            f"Received: {what} with a model in parts, world size {world_size}. Use "
            "ModelCheckpoint, which works here."
        )
