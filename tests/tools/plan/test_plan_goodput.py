"""What failures leave of a job's time, against a job played through."""

from __future__ import annotations

import random

import pytest

from dream import ConfigurationError
from dream.tools.plan.goodput import HOUR, Reliability, best_interval, goodput, share


def played(every: float, checkpoint: float, restart: float, between: float) -> float:
    """The share of work in a job of many failures, drawn at random."""
    draw = random.Random(0)
    clock = done = 0.0
    for _ in range(20_000):
        ahead = draw.expovariate(1 / between)
        while ahead < every + checkpoint:  # lost; and a restart may be hit too
            clock += ahead
            ahead = draw.expovariate(1 / between)
            while ahead < restart:
                clock += ahead
                ahead = draw.expovariate(1 / between)
            clock += restart
            ahead = draw.expovariate(1 / between)
        clock += every + checkpoint
        done += every
    return done / clock


@pytest.mark.parametrize(
    ("every", "between"), [(600.0, 3600.0), (1800.0, 3600.0), (300.0, 20_000.0)]
)
def test_the_formula_is_what_a_job_comes_to(every: float, between: float) -> None:
    assert share(every, 60.0, 120.0, between) == pytest.approx(
        played(every, 60.0, 120.0, between), rel=0.02
    )


@pytest.mark.parametrize("between", [500.0, 5_000.0, 500_000.0])
def test_no_other_interval_loses_less(between: float) -> None:
    best = best_interval(30.0, between)
    most = share(best, 30.0, 0.0, between)
    for other in (best * 0.8, best * 1.25):
        assert share(other, 30.0, 0.0, between) < most
    young = (2 * 30.0 * between) ** 0.5
    assert best == pytest.approx(young, rel=0.2 if between < 1_000 else 0.1)


def test_ten_times_the_devices_fail_ten_times_as_often() -> None:
    asked = Reliability(50_000 * HOUR, 60.0, 300.0)
    few, many = goodput(asked, 1_000), goodput(asked, 10_000)
    assert few.between == pytest.approx(10 * many.between)
    assert few.every > many.every
    assert 1 > few.share > many.share > 0.8
    assert goodput(Reliability(50_000 * HOUR, 60.0, 300.0, every=60.0), 1_000).share < 0.5
    assert goodput(Reliability(1.0, 60.0, 300.0), 100_000).share == 0.0


@pytest.mark.parametrize("change", [{"between": 0.0}, {"checkpoint": -1.0}, {"every": 0.0}])
def test_what_is_no_time_is_refused(change: dict[str, float]) -> None:
    given = {"between": 1.0, "checkpoint": 1.0, "restart": 0.0, **change}
    with pytest.raises(ConfigurationError, match="is a time"):
        Reliability(**given)
