"""This machine as hardware: its ranks share the cores, and their links are what dream's own
communicator reaches between two of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from statistics import median
from typing import Any, final

from dream.launch.guard import temporary_folder
from dream.launch.joined.threads import cores
from dream.strategies.spec import Framework
from dream.tools import frameworks, jobs
from dream.tools.collectives import main
from dream.tools.collectives.figures import TimingSettings
from dream.tools.plan import worker
from dream.tools.plan.hardware import Hardware, NetworkLink
from dream.tools.plan.readings import Rates
from dream.tools.plan.sketch import SketchedOp

SIZES = (4 << 10, 256 << 10, 1 << 20, 8 << 20)
"""Bytes of the all_reduces that the link is read from."""
REDUCTIONS = {"torch": "gloo", "tensorflow": "grpc"}
"""What ranks send with in a calibration and in measured runs: the frameworks' own collectives."""


@final
class ThisMachine:
    """This machine. A rank that is alone has all cores; else each has a core of its own, and ranks
    beyond the cores take turns. Operations that are asked for are timed by themselves, on tensors
    of their shapes, where the framework's adapter can make them."""

    def __init__(self, framework: Framework, dtype: str, timeout: float) -> None:
        """timeout: seconds that each run may take."""
        self._framework, self._dtype, self._timeout = framework, dtype, timeout
        self._cores = max(2, cores())
        self._rates = {n: self._read(n) for n in (1, self._cores)}
        self._known: dict[int, dict[str, float]] = {n: {} for n in self._rates}
        self.overheads: dict[str, float] = {}
        self._link = fit(_all_reduces(framework, timeout))

    def __call__(self, devices: int, ops: Iterable[SketchedOp]) -> Hardware:
        at_once = 1 if devices == 1 else self._cores
        crowd = max(1.0, devices / at_once)
        known, one, link = self._timed(at_once, ops), self._rates[at_once], self._link
        return Hardware(
            name=f"this machine ({self._cores} cores)",
            memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // devices,
            flops={
                self._dtype: {
                    "matmul": one.matmul / crowd,
                    "convolution": one.convolution / crowd,
                    "other": one.matmul / crowd,
                }
            },
            bandwidth=one.bandwidth / crowd,
            launch=one.launch * crowd,
            per_host=1 << 20,
            near=NetworkLink(link.latency * crowd, link.bandwidth / crowd),
            far=link,
            call=0.0,
            overlaps=False,
            fused=False,
            sources=(self._words(one),),
            known={call: seconds * crowd for call, seconds in known.items()},
            fresh=one.fresh * crowd,
            overheads={name: cost * crowd for name, cost in self.overheads.items()},
        )

    def _timed(self, n: int, ops: Iterable[SketchedOp]) -> Mapping[str, float]:
        known = self._known[n]
        new = sorted({op.call for op in ops if op.call} - known.keys())
        if new and self._framework in frameworks.CALLS:
            read = self._in_ranks(n, {"calls": new})
            known |= {
                call: median(column)
                for call, *column in zip(new, *read, strict=True)
                if None not in column
            }
        return known

    def _read(self, n: int) -> Rates:
        """Return the median over ranks that read at the same time."""
        read = self._in_ranks(n, {"dtype": self._dtype})
        return Rates(**{f.name: median(one[f.name] for one in read) for f in fields(Rates)})

    def _in_ranks(self, n: int, asked: Mapping[str, object]) -> list[Any]:
        """Return what each of n ranks read at the same time."""
        with temporary_folder("dream-plan-") as folder:
            words = {"framework": self._framework, **asked}
            ended = jobs.run(
                worker.__name__,
                folder,
                words,
                n=n,
                frameworks=[self._framework],
                timeout=self._timeout,
                words=["calibrate"],
            )
            jobs.check(ended)
            return jobs.answers(folder, n)

    def _words(self, one: Rates) -> str:
        timed = (
            "operations timed one by one on tensors of their shapes; for others "
            if self._framework in frameworks.CALLS
            else ""
        )
        fresh = (
            f" and {one.fresh * 1e9:.3g} s for each GB that the system gives anew"
            if one.fresh
            else ""
        )
        return (
            f"read on this machine: {timed}{one.matmul / 1e9:.3g} GFLOP/s in matrix products, "
            f"{one.convolution / 1e9:.3g} in convolutions, {one.bandwidth / 1e9:.3g} GB/s of "
            f"memory{fresh}, {one.launch * 1e6:.3g} us an operation; between two processes "
            f"{self._link.latency * 1e6:.3g} us and {self._link.bandwidth / 1e9:.3g} GB/s"
            + self._beside()
        )

    def _beside(self) -> str:
        if not self.overheads:
            return ""
        costs = ", ".join(f"{name} {cost * 1e6:.3g}" for name, cost in self.overheads.items())
        return f"; each operation costs besides, in us, by a small model under: {costs}"


def fit(readings: Sequence[tuple[float, float]]) -> NetworkLink:
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
    return NetworkLink(max(0.0, (mean_y - slope * mean_x) / 2), 1 / slope)


def _all_reduces(framework: Framework, timeout: float) -> list[tuple[float, float]]:
    settings = TimingSettings(2, ["all_reduce"], SIZES, [], 5, timeout)
    with temporary_folder("dream-plan-") as folder:
        rows = main.run(framework, [REDUCTIONS[framework]], settings, folder)
    return [(row.size, row.seconds.median) for row in rows]
