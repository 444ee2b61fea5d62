"""torch's SummaryWriter in the block: one run of TensorBoard's a job. Its module, which may bring
TensorFlow, is changed where the script imports it."""

from __future__ import annotations

import sys
from typing import final

from dream._framework import ImportWatch
from dream.adapters.pytorch import private
from dream.adapters.pytorch.hooks import Patches
from dream.files import saves
from dream.files.trackers import written_once

_MODULE = "torch.utils.tensorboard.writer"


@final
class EventFiles:
    """Of a job of several ranks."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._watch: ImportWatch | None = None

    def enter(self) -> None:
        if _MODULE in sys.modules:
            self._change()
        else:
            self._watch = ImportWatch(self._change, (_MODULE,))
            self._watch.install()

    def exit(self) -> None:
        """What was written by in the block stays as it is."""
        if self._watch is not None:
            self._watch.remove()
            self._watch = None

    def _change(self) -> None:
        owner, name = private.event_writers()
        get = written_once(getattr(owner, name), saves.here(), private.drop_event_file)
        self._patches.replace(owner, name, get)
