"""How the benchmarks measure: interleaved rounds, medians with quartiles, ratios round by round.

A machine's speed drifts while a benchmark runs, so a contender is compared only with what the
baseline took in the same round, and the order within a round is drawn afresh each time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any

Times = dict[str, list[float]]
"""Contender -> seconds, one figure a round."""

PACKAGES = ("torch", "tensorflow-cpu", "keras", "horovod", "accelerate", "lightning-fabric")


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and the quartiles around it."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"

    def scaled(self, factor: float) -> Spread:
        return Spread(self.low * factor, self.median * factor, self.high * factor)


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles of at least one value."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    return Spread(*quantiles(values, n=4, method="inclusive"))


def ratios(times: Times, *, unit: str, markdown: bool) -> str:
    """A table of contenders, each against the first. unit: "ms a step" or "s"."""
    baseline = next(iter(times))
    scale = 1000 if unit.startswith("ms") else 1
    rows = [
        (name, str(spread(taken).scaled(scale)), str(ratio(times, name, baseline)))
        for name, taken in times.items()
    ]
    return table(("", unit, f"against {baseline}"), rows, markdown=markdown)


def ratio(times: Times, name: str, baseline: str) -> Spread:
    """`name` against `baseline`, round by round."""
    return spread([a / b for a, b in zip(times[name], times[baseline], strict=True)])


def interleave(
    contenders: Mapping[str, Callable[[], float]], *, rounds: int, warmup: int, seed: int = 0
) -> Times:
    """Every contender once a round, in an order drawn afresh (the same on every rank).

    contenders: name -> a function that runs one block and returns its seconds.
    """
    draw = random.Random(seed)
    times: Times = {name: [] for name in contenders}
    for number in range(warmup + rounds):
        for name in draw.sample(list(contenders), len(contenders)):
            seconds = contenders[name]()
            if number >= warmup:
                times[name].append(seconds)
    return times


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, markdown: bool) -> str:
    """Aligned columns, as plain text or as Markdown."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    gap, edge = (" | ", "| ") if markdown else ("  ", "")

    def line(cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return f"{edge}{gap.join(padded)}{edge[::-1]}".rstrip()

    rule = ["-" * width for width in widths]
    return "\n".join([line(head), line(rule), *map(line, rows)])


def machine() -> dict[str, str]:
    """What the figures were read on."""
    cores = str(len(os.sched_getaffinity(0)))
    return {"cores": cores, "python": platform.python_version()} | {
        package: found for package in PACKAGES if (found := _version(package))
    }


def dream_command() -> str:
    """The `dream` of this interpreter's environment."""
    beside = Path(sys.executable).with_name("dream")
    return str(beside) if beside.exists() else (shutil.which("dream") or "dream")


def from_ranks(ranks: int, script: str | Path, *arguments: str) -> Any:
    """What `script FILE arguments...` writes to FILE as JSON, run on ranks of one thread each."""
    with TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        command = [dream_command(), "run", "-n", str(ranks), str(script), str(result), *arguments]
        subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)
        return json.loads(result.read_text())


def arguments(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """The options that every benchmark takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help="rounds that count")
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every time read")
    return parser


def write_json(path: Path | None, figures: Mapping[str, Any]) -> None:
    """Keep the raw figures beside the machine, where a file was asked for."""
    if path is not None:
        path.write_text(json.dumps({"machine": machine(), **figures}, indent=1, default=asdict))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
