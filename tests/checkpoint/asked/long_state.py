"""A state of training that is long, once in a process."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

_STATE, _MARK = os.environ.get("DREAM_TEST_STATE", ""), os.environ.get("DREAM_TEST_MARK", "")
_counted: Counter[str] = Counter()
_ASKED = os.environ.get("DREAM_TEST_LIMIT")
_LIMIT = time.time() + float(_ASKED) if _ASKED else 0.0
"""Of the scheduler's time, less the minute that is left for saving; 0 for none."""

if _LIMIT:
    os.environ["SLURM_JOB_END_TIME"] = str(int(_LIMIT + 60.0))


def come(state: str, *, after: int) -> None:
    """Be long here the next time after so many, if this is the state that is to be long."""
    _counted[state] += 1
    if state != _STATE or _counted[state] != after + 1:
        return
    Path(f"{_MARK}.{os.environ['RANK']}").write_text(str(os.getpid()))
    time.sleep(1.5)
    while time.time() < _LIMIT + 0.5:
        time.sleep(0.05)
