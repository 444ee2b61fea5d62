"""Losses that are no plain mean over samples train what they train without dream, on one device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from loss_scripts import BY_HAND, NOT_UNDERSTOOD, QUIET, SCRIPTS

import dream
from dream.adapters.pytorch.loss.divisors import (
    CONSTANT,
    EITHER,
    OF_NONE,
    REFUSED,
    Verdict,
    divided_by_numbers,
)
from dream.adapters.pytorch.loss.graph import Reduction
from dream.adapters.pytorch.loss.reading import say
from dream.adapters.pytorch.loss.terms import Term
from dream.data.partition import Division

JOB = Path(__file__).with_name("loss_job.py")
NEAR = {"penalty_on_sum", "penalties_on_chosen_parameters", "two_kinds", "zipped"}
"""Their parts count differently: what a loop prints is near the global value."""
AMPLIFIES = {"line_search": 1e-5}
"""A line search makes much of the last bits of a loss."""


@dataclass(frozen=True)
class Ran:
    said: Mapping[str, object]
    lines: str


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.exhaustive)])
def ran(request: pytest.FixtureRequest) -> Ran:
    command = [sys.executable, "-m", "dream", "run", "-n", str(request.param), str(JOB)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return Ran(dict(rows), done.stdout + done.stderr)


@pytest.mark.parametrize("name", [*SCRIPTS, *BY_HAND])
def test_a_script_learns_what_it_learns_without_dream(ran: Ran, name: str) -> None:
    apart, printed = ran.said[name]  # type: ignore[misc]
    assert apart < AMPLIFIES.get(name, 1e-6)
    if name not in NEAR:
        assert printed < 1e-6


@pytest.mark.parametrize("name", NOT_UNDERSTOOD)
def test_an_operation_that_is_not_understood_is_named(ran: Ran, name: str) -> None:
    operation = NOT_UNDERSTOOD[name][1]
    assert f"since what {operation} divides by" in ran.lines
    assert operation in str(ran.said[name])
    assert "strict=True" in str(ran.said[name])


@pytest.mark.parametrize(
    "line",
    [
        "divided by the size of the global batch, a constant",
        "divided by as many samples as this rank has, a count",
        "divided by a tensor that is 5 on every rank: each rank's counts as its part of a count",
        "comes from no loader of the block, or was read before there was an optimizer, is whole on",
    ],
)
def test_what_is_taken_for_granted_is_said(ran: Ran, line: str) -> None:
    assert line in ran.lines


def test_a_divisor_that_is_no_known_count_is_said(ran: Ran) -> None:
    line = "a tensor that is not the same on every rank, and no count of what the loss adds up"
    assert line in str(ran.said["said by over_a_count_and_one"])


def test_a_one_that_may_stand_for_none_is_said_and_refused(ran: Ran) -> None:
    line = "where that is max(count, 1) of rows that have nothing to count"
    assert str(ran.said["said by over_positives_or_one_as_a_number"]).count(line) == 1
    with pytest.raises(dream.Unsupported, match=r"Received: strict=True\. Divide by a tensor"):
        say([Term(None, "count", [], noticed=OF_NONE)], set(), strict=True)


@pytest.mark.parametrize(("sizes", "line"), [((4, 2), EITHER), ((4,), CONSTANT)])
def test_a_size_that_is_two_things_is_told(sizes: tuple[int, ...], line: str) -> None:
    """Eight rows on two ranks, of two numbers each: what is divided by 8 may be a mean over a
    rank's elements, which was off by half, and not even `strict` told."""
    share = Division(2).share(8, 0)
    divided = divided_by_numbers([8.0], Reduction(False, sizes, (0,)), share, list, ragged=False)
    assert Verdict(False, 8.0, CONSTANT).noticed_of(divided) == line
    assert EITHER in REFUSED


def test_a_constant_that_differs_later_is_said_without_a_backward_pass_too(ran: Ran) -> None:
    line = "it was when the loss was first seen"
    assert line in str(ran.said["said by differentiated_over_a_number_that_was_alike"])


def test_a_mean_times_the_rows_of_a_share_is_said(ran: Ran) -> None:
    line = "the loss is a mean, times a number that is how many samples this rank has"
    assert line in str(ran.said["said by mean_times_rows"])


def test_losses_of_different_kinds_of_one_batch_are_refused(ran: Ran) -> None:
    assert "The loss of one batch is of different kinds" in str(ran.said["branches"])


@pytest.mark.parametrize("name", QUIET)
def test_of_a_divisor_that_is_known_nothing_is_said(ran: Ran, name: str) -> None:
    said = str(ran.said[f"said by {name}"])
    assert "the loss is a sum" not in said
    assert "count differently" not in said
