"""The report for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dream._figures import finite
from dream.tools.port_check.gap import Gap
from dream.tools.port_check.settings import Setting
from dream.tools.port_check.verdict import Found, Report, Row

Figures = dict[str, Any]


def build(report: Report) -> Figures:
    """What `--json` writes. A figure that is nan or infinite is null."""
    return {
        "equal": report.equal,
        "backends": list(report.backends),
        "inputs": {name: [list(s) for s in shapes] for name, shapes in report.given.items()},
        "loss": [finite(value) for value in report.loss],
        "first_value": _found(report.first_value),
        "first_layer": _found(report.first_layer),
        "first_gradient": _found(report.first_gradient),
        "reasons": list(report.reasons),
        "settings": [_setting(setting) for setting in report.settings],
        "remarks": list(report.remarks),
        "shaken": list(report.shaken),
        "layers": [_row(row) for row in report.rows],
        "outputs": [_gap(gap) for gap in report.outputs],
    }


def _row(row: Row) -> Figures:
    return {
        "old": row.old.name,
        "new": row.new.name,
        "kind": row.old.kind,
        "values": _gaps(row.values),
        "input": _gap(row.given),
        "output": _gap(row.gave),
        "gradients": _gaps(row.gradients),
    }


def _found(found: Found | None) -> Figures | None:
    if found is None:
        return None
    return {"layer": found.layer, "where": found.where, "role": found.role or None,
            "difference": _gap(found.gap)}  # fmt: skip


def _setting(setting: Setting) -> Figures:
    return {"layer": setting.layer, "name": setting.name, "old": setting.old, "new": setting.new,
            "counts": not setting.forward}  # fmt: skip


def _gaps(gaps: Mapping[str, Gap]) -> Figures:
    return {role: _gap(gap) for role, gap in gaps.items()}


def _gap(gap: Gap | None) -> Figures | None:
    if gap is None:
        return None
    return {
        "largest": finite(gap.largest),
        "relative": finite(gap.relative),
        "tolerance": gap.tolerance,
        "differs": gap.bad,
        "shapes": [list(shape) for shape in gap.shapes],
    }
