"""The measurement for programs."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict

from dream import _here
from dream.tools.collectives.figures import Machine, Row
from dream.tools.collectives.settings import Settings

Figures = dict[str, object]


def build(rows: Sequence[Row], settings: Settings, machine: Machine) -> Figures:
    """What `--json` writes. Sizes in bytes, times in seconds, bandwidths in bytes a second."""
    return {
        "machine": asdict(machine) | {"system": platform.system(), "arch": platform.machine()},
        "versions": _here.versions(),
        "settings": asdict(settings),
        "rows": [_row(row) for row in rows],
    }


def _row(row: Row) -> Figures:
    figures: Figures = {
        "framework": row.framework,
        "operation": row.operation,
        "size": row.size,
        "algorithm" if row.is_algorithm else "transport": row.contender,
        "seconds": row.seconds.median,
        "seconds_quartiles": [row.seconds.low, row.seconds.high],
        "calls_per_reading": row.calls,
        "bus_bandwidth": row.bus_bandwidth,
        "memcpy_bandwidth": row.memcpy,
        "against_memcpy": row.against_memcpy,
    }
    if row.is_algorithm:
        figures |= {"sent_by_rank": row.sent, "sent_by_formula": row.formula}
    return figures
