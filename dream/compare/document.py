"""The comparison for programs."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from dream.compare import judge
from dream.compare.judge import Row
from dream.compare.outcome import Finished
from dream.compare.settings import Machine, Settings

Figures = dict[str, object]


def build(rows: Sequence[Row], settings: Settings, machine: Machine) -> Figures:
    """What `--json` writes. A figure that is nan or infinite, or was not read, is null."""
    return {
        "machine": asdict(machine) | {"system": platform.system(), "arch": platform.machine()},
        "python": platform.python_version(),
        "job": asdict(settings.job),
        "limit": judge.LIMIT,
        "cells": [_cell(row) for row in rows],
        "loss_difference_between_frameworks": _number(judge.between_frameworks(rows)),
        "good": all(row.verdict.good for row in rows),
    }


def write(path: Path, figures: Figures) -> None:
    """All or nothing."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(figures, indent=2, allow_nan=False) + "\n")
    os.replace(part, path)  # noqa: PTH105


def _cell(row: Row) -> Figures:
    cell = row.cell
    figures: Figures = {
        "framework": cell.framework,
        "strategy": cell.strategy,
        "processes": cell.processes,
        "devices_per_process": cell.devices,
        "replicas": cell.replicas,
        "reduction": row.reduction or None,
        "verdict": str(row.verdict),
        "good": row.verdict.good,
        "reason": row.reason or None,
        "speed_against_single": _number(row.speed),
        "largest_parameter_difference": _number(row.difference),
        "largest_allowed": judge.limit_of(cell),
    }
    return figures | (_finished(row.outcome) if isinstance(row.outcome, Finished) else {})


def _finished(done: Finished) -> Figures:
    return {
        "samples_per_second": _number(done.first.samples_per_second),
        "losses": [_number(loss) for loss in done.first.losses],
        "test_accuracy": _number(done.first.accuracy),
        "start_up_seconds": _number(done.start_up),
        "peak_bytes_per_rank": [record.peak_bytes for record in done.records],
        "device": done.first.device,
        "parameter_digests": [record.digest for record in done.records],
    }


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
