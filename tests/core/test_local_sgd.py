"""When replicas that step alone are averaged, and in what."""

from __future__ import annotations

import pytest

from dream import Unsupported
from dream.update.local_sgd import AveragingSchedule, refuse_weigh, refuse_weight


def averaged(every: int, acts: str) -> list[tuple[int, bool, bool]]:
    """The act by which each average came, and whether it was of gradients, and of parameters. acts:
    s for a step, e for the end of a pass."""
    found: list[tuple[int, bool, bool]] = []
    schedule = AveragingSchedule({"every": every}, lambda *what: found.append((index, *what)))
    for index, act in enumerate(acts):
        if act == "s":
            assert schedule.before_step() == (bool(found) and found[-1][0] == index)
        else:
            schedule.settle()
    return found


def test_at_every_step_gradients_alone_travel() -> None:
    assert averaged(1, "sse") == [(0, True, False), (1, True, False), (2, False, False)]


def test_on_every_kth_step_parameters_that_are_apart_travel_too() -> None:
    assert averaged(3, "ssssss") == [(2, True, True), (5, True, True)]


def test_the_end_of_a_pass_makes_alike_what_is_apart_once() -> None:
    assert averaged(3, "essee") == [(3, False, True)]
    assert averaged(3, "ssesss") == [(2, False, True), (3, True, False)]


def test_counts_that_replicas_do_not_know_are_refused() -> None:
    with pytest.raises(Unsupported, match=r"weight= under 'local_sgd'.*leave weight out"):
        refuse_weight()
    with pytest.raises(Unsupported, match=r"count=3\) under 'local_sgd'"):
        refuse_weigh(3)
