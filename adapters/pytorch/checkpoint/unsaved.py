"""A training that the launcher was asked to keep, and that its script has not said what it is."""

from __future__ import annotations

from typing import Any, final

from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from dream._log import logger
from dream.adapters.pytorch.checkpoint.lines import load_lines
from dream.cluster import settings

_UNSAVED = (
    "--checkpoint keeps nothing of this training, which began without strategy.load: a job that is "
    "started again begins anew. To have it saved, and gone on with, load before the loop, and "
    "begin there:\n%s\nWhat the script counts by itself begins anew: see at.step and at.batch."
)


@final
class UnsavedTraining:
    """Tells, as training begins, that the launcher was asked to keep it and the script has not
    said what it is."""

    def __init__(self) -> None:
        self.known = settings.checkpoints().folder is None
        self._hook: RemovableHandle | None = None

    def watch(self) -> None:
        if not self.known:
            self._hook = register_optimizer_step_pre_hook(self._steps)

    def rest(self) -> None:
        if self._hook is not None:
            self._hook.remove()

    def _steps(self, *_: Any) -> None:
        if not self.known:
            self.known = True
            logger.info(_UNSAVED, load_lines())
