"""When replicas that step alone are averaged, and in what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dream import ConfigurationError, Unsupported
from dream.strategies.spec import find
from dream.update.local_sgd import AveragingSchedule, refuse_weigh, refuse_weight
from dream.update.outer import OuterSteps, cut


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
    with pytest.raises(Unsupported, match=r"weight= under 'local_sgd'.*remove weight"):
        refuse_weight()
    with pytest.raises(Unsupported, match=r"count=3\) under 'local_sgd'"):
        refuse_weigh(3)


class Replica:
    """One of a job whose others are where it is."""

    def __init__(self, *values: float) -> None:
        self.values = [np.array([value]) for value in values]
        self.travelled: list[int] = []

    def shapes(self) -> list[tuple[int, ...]]:
        return [value.shape for value in self.values]

    def copies(self, places: Sequence[int]) -> list[Any]:
        return [self.values[place].copy() for place in places]

    def means(self, values: list[Any]) -> list[Any]:
        self.travelled.append(len(values))
        return values

    def assign(self, places: Sequence[int], values: list[Any]) -> None:
        for place, value in zip(places, values, strict=True):
            self.values[place] = value


OUTER: dict[str, object] = {"outer_lr": 0.5, "outer_momentum": 0.0, "every": 4, "fragments": 1}


def outer(replica: Replica, **options: object) -> OuterSteps:
    return OuterSteps({**OUTER, **options}, replica, lambda: None)


def test_an_outer_step_goes_down_how_far_a_replica_has_come() -> None:
    replica = Replica(1.0)
    steps = outer(replica, every=2)
    for _ in range(2):
        steps.before_step()
        replica.values[0] = replica.values[0] - 1.0
        steps.after_step()
    assert replica.values == [np.array([0.0])]  # half of the way from 1 to -1


def test_fragments_travel_in_turn_each_as_often() -> None:
    replica = Replica(*range(4))
    steps = outer(replica, fragments=4)
    for _ in range(8):
        steps.before_step()
        steps.after_step()
    assert replica.travelled == [1] * 8
    steps.settle()
    assert replica.travelled == [1] * 8 + [3]  # the one of the last step is alike


def test_parts_are_of_about_one_size() -> None:
    assert cut([(10, 10), (10,), (50, 2), (5,)], 2) == [[0, 1], [2, 3]]
    assert cut([(4,)], 3) == [[0]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"outer_lr": 0.0}, "a learning rate above 0"),
        ({"outer_momentum": 1.0}, "a momentum below 1"),
        ({"fragments": 5}, "at most as many fragments as steps"),
        ({"outer_lr": None, "fragments": 2}, "Pass outer_lr="),
    ],
)
def test_outer_steps_that_cannot_be_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        find("local_sgd").resolve({**OUTER, **options})
