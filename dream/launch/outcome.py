"""How a job ended."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from dream.launch.ending import Cause


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended on this host.

    seconds: since its ranks started.
    cause: the rank to name; None where no rank's failure ended the job.
    ended: ranks of this host that had to be ended.
    stopped: the signal that ended the job.
    lost: what else ended it: a time limit, another host.
    grace: whether ranks may save what they have, since the job was stopped on another host.
    shown: ranks whose last words are on this host's screen.
    """

    seconds: float
    cause: Cause | None = None
    ended: tuple[int, ...] = ()
    stopped: signal.Signals | None = None
    lost: str = ""
    grace: bool = False
    shown: frozenset[int] = frozenset()

    @property
    def exit_code(self) -> int:
        if self.stopped is not None:
            return 128 + self.stopped
        if self.cause is not None:
            code = self.cause.first.code or 1
            return code if code > 0 else 128 - code
        return 1 if self.lost else 0
