"""Real models of both frameworks: what is equal is found equal, in outputs and gradients."""

from __future__ import annotations

import pytest
from porting_kit import BATCHES, Checked

BOTH_WAYS = ("dense", "conv1d", "conv2d", "conv2d_same_stride", "batch_norm", "norms", "embedding",
             "attention", "lstm", "gru")  # fmt: skip
"""A pair for each kind of layer; the others hold what they hold from either side."""
CELLS = [
    pytest.param(
        old, new, name,
        marks=[pytest.mark.exhaustive] * (old == "keras" and name not in BOTH_WAYS),
    )
    for name in BATCHES
    for old, new in (("torch", "keras"), ("keras", "torch"))
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "name"), CELLS)
def test_what_is_equal_is_found_equal(checked: Checked, old: str, new: str, name: str) -> None:
    report = checked(f"{old}:{name}", f"{new}:{name}", name)
    assert report.first_layer is None, report
    assert report.first_gradient is None, report
    assert report.equal, report.settings
    assert all(row.gradients for row in report.rows)
    seen = [row.gave is not None and row.given is not None for row in report.rows]
    assert all(seen) or name in ("bidirectional", "tokens")  # torch's is one module, or the model
    assert report.loss[0] == pytest.approx(report.loss[1], rel=1e-5)
