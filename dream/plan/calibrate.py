"""This machine as hardware: its ranks share the cores, and their links are what dream's own
communicator reaches between two of them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import final

from dream._errors import WorkerFailed
from dream._spec import Framework
from dream.collectives import runner
from dream.collectives.settings import Settings
from dream.launch import start
from dream.launch.command import explain
from dream.launch.environment import cores
from dream.launch.job import Job

from . import rates
from .hardware import Hardware, Link, Machine

SIZES = (4 << 10, 256 << 10, 1 << 20, 8 << 20)
"""Bytes of the all_reduces that the link is read from."""
REDUCTIONS = {"torch": "gloo", "tensorflow": "grpc"}
"""What ranks send with in a calibration and in measured runs: the frameworks' own collectives."""


@final
@dataclass(frozen=True, slots=True)
class Rates:
    """Of one rank: operations a second in matrix products and convolutions, bytes a second to and
    from memory, seconds that each operation costs besides."""

    matmul: float
    convolution: float
    bandwidth: float
    launch: float


@final
@dataclass(frozen=True, slots=True)
class Calibration:
    """alone: of one rank with all cores; together: of one of as many ranks as there are cores."""

    cores: int
    dtype: str
    alone: Rates
    together: Rates
    link: Link

    def hardware(self, devices: int) -> Hardware:
        """Ranks beyond the cores take turns."""
        one = self.alone if devices == 1 else self.together
        crowd = max(1.0, devices / self.cores) if devices > 1 else 1.0
        return Hardware(
            name=f"this machine ({self.cores} cores)",
            memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // devices,
            flops={
                self.dtype: {
                    "matmul": one.matmul / crowd,
                    "convolution": one.convolution / crowd,
                    "other": one.matmul / crowd,
                }
            },
            bandwidth=one.bandwidth / crowd,
            launch=one.launch * crowd,
            per_host=1 << 20,
            near=Link(self.link.latency * crowd, self.link.bandwidth / crowd),
            far=self.link,
            call=0.0,
            overlaps=False,
            fused=False,
            sources=(self._words(one),),
        )

    def _words(self, one: Rates) -> str:
        return (
            f"read on this machine: {one.matmul / 1e9:.3g} GFLOP/s in matrix products, "
            f"{one.convolution / 1e9:.3g} in convolutions, {one.bandwidth / 1e9:.3g} GB/s of "
            f"memory, {one.launch * 1e6:.3g} us an operation; between two processes "
            f"{self.link.latency * 1e6:.3g} us and {self.link.bandwidth / 1e9:.3g} GB/s"
        )


def calibrate(framework: Framework, dtype: str, timeout: float) -> Machine:
    """timeout: seconds that each of the three runs may take."""
    shared = cores()
    alone = _rates(framework, dtype, 1, timeout)
    together = _rates(framework, dtype, max(2, shared), timeout)
    link = fit(_all_reduces(framework, timeout))
    return Calibration(max(2, shared), dtype, alone, together, link).hardware


def fit(readings: Sequence[tuple[float, float]]) -> Link:
    """Latency and bandwidth from (bytes, seconds) of a ring all_reduce on two ranks, which takes
    2 latency + bytes / bandwidth: the line with the least relative errors."""
    weights = [1 / seconds**2 for _, seconds in readings]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, readings, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, readings, strict=True)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, readings, strict=True))
    slope = sum(
        w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, readings, strict=True)
    ) / (spread or 1.0)
    slope = max(slope, 1e-15)
    return Link(max(0.0, (mean_y - slope * mean_x) / 2), 1 / slope)


def _all_reduces(framework: Framework, timeout: float) -> list[tuple[float, float]]:
    settings = Settings(2, ["all_reduce"], SIZES, [], 5, timeout)
    with TemporaryDirectory(prefix="dream-plan-") as folder:
        rows = runner.run(framework, [REDUCTIONS[framework]], settings, Path(folder))
    return [(row.size, row.seconds.median) for row in rows]


def _rates(framework: Framework, dtype: str, n: int, timeout: float) -> Rates:
    """The median over ranks that read at the same time."""
    with TemporaryDirectory(prefix="dream-plan-") as name:
        folder = Path(name)
        (folder / rates.JOB).write_text(json.dumps({"framework": framework, "dtype": dtype}))
        command = ("module", rates.__name__, name)
        job = Job(command, n, frameworks=(framework,), show="none", timeout=timeout)
        ended = start.run(job)
        if ended.exit_code != 0:
            raise WorkerFailed(explain(ended))
        read = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(n)]
    return Rates(**{f.name: median(one[f.name] for one in read) for f in fields(Rates)})
