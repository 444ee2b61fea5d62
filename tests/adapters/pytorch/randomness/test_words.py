"""What is read of a script's functions leaves nothing behind in them."""

from __future__ import annotations

import dis
import sys
from contextlib import nullcontext
from typing import Any
from weakref import ref

import torch

from dream.adapters.pytorch.randomness.words import (
    LOADS,
    STORES,
    Words,
    names_in,
    variables_of,
    words_at,
)


def names_here() -> Any:
    return variables_of(sys._getframe(1))


def test_what_a_script_deletes_is_gone_though_its_names_were_read() -> None:
    large = torch.zeros(3)
    gone = ref(large)
    assert "large" in names_here()
    del large
    assert gone() is None


def test_what_a_script_has_of_its_own_names_stays() -> None:
    rate = 0.1
    own = locals()
    names_here()
    assert own["rate"] == rate
    assert names_here()["own"] is own


def test_a_modules_names_are_its_own() -> None:
    frame = {"names_here": names_here}
    exec("names = names_here()", frame)
    assert frame["names"] is frame


def held(_: object = None) -> Words:
    frame = sys._getframe(1)
    return words_at(frame.f_code, frame.f_lasti)


def test_a_loop_that_is_over_binds_no_name() -> None:
    """Whatever it has done about errors: that lies elsewhere in newer Pythons' code."""
    for x in "ab":
        for y in "cd":
            with nullcontext():
                within = held()
            try:
                z = x + y
            except KeyError:
                continue
        between = held()
    after = held()
    assert {"x", "y"} <= {name for names in within.bound for name in names}
    assert {name for names in between.bound for name in names} == {"x"}
    assert (after.bound, after.loop) == ((), None)
    assert z == "bd"


def test_a_name_that_loops_share_is_of_the_one_around_the_call() -> None:
    """As of a policy's distribution, in a rollout and then over batches of it."""
    given: set[str] = set()
    for _ in range(2):
        for step in "ab":
            d = step * 2
            given |= {name for names in held(d).given for name in names}
        for row in "cd":
            d = row * 2
    assert "step" in given
    assert "row" not in given


def test_what_does_two_things_at_once_is_read_as_both() -> None:
    """As Python 3.13 has it."""
    own = next(dis.get_instructions(test_a_modules_names_are_its_own))
    both = own._replace(opname="STORE_FAST_LOAD_FAST", argval=("n", "x"))
    assert (names_in(both, STORES), names_in(both, LOADS)) == (("n",), ("x",))
