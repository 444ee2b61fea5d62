"""Draws of a number that a script has written, told from rows by their place in a step."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dream.adapters.keras.randomness.sizes import DrawnSizes, StepDraws

Shapes = Sequence[tuple[int, ...]]
TRIED = {7: [(3,), (7,), (7, 2)], 4: [(3,), (4,), (4, 2)], 3: [(3,), (3,), (3, 2)]}
"""Three numbers for all samples, then one for each, and two for each."""


def tried(each: dict[int, list[tuple[int, ...]]]) -> DrawnSizes:
    sizes = DrawnSizes()
    note(sizes, each)
    sizes.settle(training=True)
    return sizes


def note(sizes: DrawnSizes, each: dict[int, list[tuple[int, ...]]]) -> None:
    for rows, shapes in each.items():
        sizes.begin(rows)
        for shape in shapes:
            sizes.note_draw(rows, shape)


def told(sizes: DrawnSizes, shapes: Shapes, *, ordered: bool = True) -> list[bool | None]:
    draws = StepDraws(sizes, ordered=ordered)
    found = []
    for shape in shapes:
        draws.go_on()
        found.append(draws.written(shape))
    return found


@pytest.mark.parametrize(
    ("shapes", "written"),
    [
        ([(3,), (3,), (3, 2)], [True, False, False]),
        ([(3,), (5,), (5, 2)], [True, False, False]),
        ([(3,), (3, 2), (3,)], [True, None, False]),  # another layer was picked in this step
        ([(5,), (3,), (3, 2), (3,)], [None, False, False, None]),
    ],
)
def test_the_place_of_a_draw_tells(shapes: Shapes, written: list[bool | None]) -> None:
    assert told(tried(TRIED), shapes) == written


def test_a_step_that_was_not_tried_last_is_told_by_shapes_alone() -> None:
    assert told(tried(TRIED), [(3,)], ordered=False) == [None]


def test_trials_of_tests_leave_the_order_of_training() -> None:
    sizes = tried(TRIED)
    note(sizes, {7: [(7,)], 4: [(4,)], 3: [(3,)]})
    sizes.settle(training=False)
    assert told(sizes, [(3,), (3,)]) == [True, False]
