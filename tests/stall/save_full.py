"""Ranks that save together, on a disk that rank 0 may not write to: FOLDER. Rank 1 ends while it
writes, and rank 0 says what it is told."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path

import torch

import dream
from dream.checkpoint.storage.folder import CheckpointFolder
from dream.stall import watcher

FOLDER = Path(sys.argv[1])
RANK = int(os.environ["RANK"])


def ends(*_: object) -> None:
    while not (FOLDER / "met").exists():
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)


with dream.strategy("mirrored") as strategy:
    model = torch.nn.Linear(2048, 8192)  # of two writers
    if RANK == 1:
        CheckpointFolder.write = ends  # type: ignore[assignment, method-assign]
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    saving = strategy.save(FOLDER / "saved", step=1, model=model)
    while not watcher._watchers[0]._peers._near:
        time.sleep(0.02)
    if RANK == 0:
        (FOLDER / "met").touch()
    try:
        saving.wait()
    except dream.DreamError as error:
        print("refused", type(error).__name__, error, flush=True)
    os._exit(0)  # the block would raise it again
