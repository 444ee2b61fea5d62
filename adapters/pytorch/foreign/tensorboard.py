"""torch's SummaryWriter in the block: one run of TensorBoard's a job. Its module, which may bring
TensorFlow, is changed where the script imports it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, final

from dream._framework import ImportWatch
from dream.adapters.pytorch.foreign import private
from dream.adapters.pytorch.hooks import Patches
from dream.files import saves
from dream.files.saves import SavedPaths

_SECONDS = 2.0
"""In which rank 0 is looked for: writers are made once, and ranks come to it seconds apart."""
_BY_THE_CLOCK = re.compile(r"runs/[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_[^/]*")
"""The folder that torch makes up, another one on each rank."""


@final
class SilentWriter:
    """Takes what a writer of events takes, and writes nothing."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def get_logdir(self) -> str:
        return self._folder

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith(("add_", "flush", "close", "reopen")):
            raise AttributeError(name)
        return lambda *_, **__: None


def written_once(get: Callable[[Any], Any], saves: SavedPaths, drop: Callable[[Any], None]) -> Any:
    """Return what stands for `SummaryWriter._get_file_writer`. drop: closes and removes the file
    of a writer that was made before the block."""

    @wraps(get)
    def file_writer(writer: Any) -> Any:
        if isinstance(writer.file_writer, SilentWriter):
            return writer.file_writer
        folder = str(writer.log_dir)
        made_up = _BY_THE_CLOCK.fullmatch(Path(folder).as_posix()) is not None
        if saves.takes("runs" if made_up else folder, _SECONDS):
            return get(writer)
        if writer.file_writer is not None:
            drop(writer.file_writer)
        silent = SilentWriter(folder)
        writer.file_writer, writer.all_writers = silent, {folder: silent}
        return silent

    return file_writer


_FURTHER = "add_hparams", "add_scalars", "add_embedding"
"""Calls that write to files beside the writer's own."""


def unless_silent(add: Callable[..., None], get: Callable[[Any], Any]) -> Callable[..., None]:
    """Return what stands for one of these. get: `written_once`."""

    @wraps(add)
    def added(writer: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(get(writer), SilentWriter):
            add(writer, *args, **kwargs)

    return added


_MODULE = "torch.utils.tensorboard.writer"


@final
class EventFiles:
    """Lets one rank of a job write events."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._watch = ImportWatch(self._change, (_MODULE,))

    def enter(self) -> None:
        self._watch.start()

    def exit(self) -> None:
        """What was written by in the block stays as it is."""
        self._watch.remove()

    def _change(self) -> None:
        owner, name = private.event_writers()
        get = written_once(getattr(owner, name), saves.here(), private.drop_event_file)
        self._patches.replace(owner, name, get)
        for further in _FURTHER:
            self._patches.replace(owner, further, unless_silent(getattr(owner, further), get))
