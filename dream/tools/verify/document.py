"""What was found, for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dream import _here
from dream._figures import finite
from dream.tools.verify.cause import Cause
from dream.tools.verify.gaps import Gap
from dream.tools.verify.judge import Judged
from dream.tools.verify.runs import Ran
from dream.tools.verify.tolerance import NOISE, Tolerance

Figures = dict[str, Any]


def build(rows: Sequence[Judged], single: Ran, causes: Mapping[str, Sequence[Cause]]) -> Figures:
    """What `--json` writes. A figure that is nan or infinite is null."""
    allowed = Tolerance(single.first.dtype, single.updates)
    return {
        "equal": all(row.good for row in rows),
        "framework": single.first.framework,
        "keras": single.first.keras,
        "versions": _here.versions(),
        "steps": len(single.losses),
        "batches_per_step": single.first.batches,
        "ended_early": single.first.stopped,
        "tolerance": {
            "dtype": allowed.dtype,
            "loss": allowed.loss,
            "parameter": allowed.parameter,
            "times_single_from_itself": NOISE,
        },
        "parameters": sorted(single.parameters[0]),
        "losses": [finite(loss) for loss in single.losses],
        "strategies": [_row(row, causes.get(row.cell.strategy, ())) for row in rows],
    }


def _row(row: Judged, causes: Sequence[Cause]) -> Figures:
    ran = row.ran
    return {
        "strategy": row.cell.strategy,
        "processes": row.cell.processes,
        "replicas": row.cell.parts,
        "reduction": None if ran is None else ran.first.reduction,
        "verdict": str(row.verdict),
        "equal": row.good,
        "reason": row.reason or None,
        "losses": None if ran is None else [finite(loss) for loss in ran.losses],
        "first_step_that_differs": row.first_step,
        "largest_loss_difference": finite(max(row.losses)) if row.losses else None,
        "largest_parameter_difference": None if row.largest is None else finite(row.largest),
        "worst_parameter": None if row.worst is None else _gap(row.worst),
        "equal_but_for_rounding": [_gap(gap) for gap in row.rounding],
        "causes": [
            {
                "name": cause.name,
                "ruling": str(cause.ruling),
                "evidence": cause.evidence,
                "advice": cause.advice or None,
            }
            for cause in causes
        ],
    }


def _gap(gap: Gap) -> Figures:
    return {"name": gap.name, "rank": gap.rank, "difference": finite(gap.size),
            "allowed": finite(gap.allowed)}  # fmt: skip
