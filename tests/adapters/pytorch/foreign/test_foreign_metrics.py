"""What torchmetrics says of a run on several ranks is what it says of the plain one: a batch that
ranks share is counted by all of them, one that each reads whole is counted once."""

from __future__ import annotations

from typing import Any

import pytest

import dream

pytestmark = pytest.mark.slow

pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")


def run() -> list[dict[str, Any]]:
    """Plain, and in the block; a rank takes seconds to import torchmetrics."""
    import foreign_metrics

    return [foreign_metrics.figures(plain) for plain in (True, False)]


def test_what_metrics_have() -> None:
    import torchmetrics

    from dream.adapters.pytorch.private import wrap_metric_updates

    name, _ = wrap_metric_updates(torchmetrics.Metric)
    metric = torchmetrics.SumMetric()
    assert getattr(type(metric), name) is getattr(torchmetrics.Metric, name)
    assert "update" in vars(metric)
    assert {"distributed_available_fn", "dist_sync_fn"} <= {*vars(metric)}
    assert metric.update_count == 0


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_metrics_say_what_they_say_of_one_process(ranks: int) -> None:
    for alone, ours in dream.launch(run, n=ranks, framework="torch", timeout=300):
        for place, figures in alone.items():
            assert ours[place] == pytest.approx(figures, abs=1e-6), place
