"""The ring's tuning of itself: it tries sizes of its buffer and times of its cycle while a job
trains, by Bayesian optimisation, and stays with the best."""

from __future__ import annotations

import atexit
import csv
import shutil
import tempfile
from pathlib import Path
from typing import final

from dream import cluster
from dream._errors import ConfigurationError
from dream._log import logger
from dream._topology import Cluster
from dream.adapters.horovod._ring import stands

_running: list[Tuning] = []


@final
class Tuning:
    """The tuning of this process's ring. log: the core's, a row for each trial; on rank 0."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def tell(self) -> None:
        """Say which values are the best so far."""
        rows = (
            list(csv.DictReader(self._log.read_text().splitlines())) if self._log.exists() else []
        )
        if not rows:
            logger.info("the ring has made no trial yet to tune itself: one takes some 50 updates")
            return
        best = max(rows, key=lambda row: float(row["score"]))
        logger.info(
            "the ring tuned itself in %d trials: buffers of %.3g MB, cycles of %.3g ms (%.3g MB/s)",
            len(rows), float(best["tensor_fusion_threshold"]), float(best["cycle_time_ms"]),
            float(best["score"]),
        )  # fmt: skip


def begin(place: Cluster, reduction: str) -> Tuning | None:
    """Have the ring tune itself, before it starts. What tells of it, on rank 0."""
    if reduction != "horovod":
        raise ConfigurationError(
            f"Only the ring tunes itself. Received: autotune=True with reduction={reduction!r}. "
            "Pass reduction='horovod', or remove autotune."
        )
    if not _running:
        if stands():
            raise ConfigurationError(
                "The ring is already running, and autotuning must be on from its start. Received: "
                "autotune=True in a later block. Say it in the first block on the ring."
            )
        folder = Path(tempfile.mkdtemp(prefix="dream-tuning-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        cluster.export_tuning(str(folder / "log.csv"))
        _running.append(Tuning(folder / "log.csv"))
    return _running[0] if place.rank == 0 else None
