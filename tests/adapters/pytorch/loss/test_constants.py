"""A loss whose constants were computed from its batch trains another model on shares of it: a line
names it, and strict=True raises. Of constants that only look like it nothing is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from constant_scripts import COUPLED, INNOCENT
from joined_scripts import FOUND_LATE, LIKENED, TOGETHER
from kept_scripts import APART, CUT, MIXED, WRITTEN
from single_scripts import SINGLES

from dream.adapters.pytorch.loss.coupling.forms import form_of

pytestmark = pytest.mark.slow

JOB = Path(__file__).with_name("constant_job.py")
COUPLES = ("a constant of the loss", "of all of a share's rows")
CUTS = "the loop takes some of its batch's rows by their number"
WRITES = "the loop writes what it made of a batch's rows into a"
Ran = Mapping[str, tuple[float, list[str], str]]


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.exhaustive)])
def ran(request: pytest.FixtureRequest) -> Ran:
    command = [sys.executable, "-m", "dream", "run", "-n", str(request.param), str(JOB)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


@pytest.mark.parametrize("name", COUPLED | MIXED | LIKENED)
def test_a_constant_of_a_batch_is_named_and_refused(ran: Ran, name: str) -> None:
    (apart, said, refused), (_, words) = ran[name], (COUPLED | MIXED | LIKENED)[name]
    assert apart > 1e-4  # it is another model
    assert sum(any(map(line.__contains__, COUPLES)) for line in said) == 1
    assert any(words in line for line in said)
    assert words in refused
    assert "Received: strict=True" in refused
    assert "all_gather" in refused


@pytest.mark.parametrize("name", INNOCENT | APART | TOGETHER | SINGLES)
def test_of_any_other_constant_nothing_is_said(ran: Ran, name: str) -> None:
    apart, said, refused = ran[name]
    if name != "time_first":  # which drops at random
        assert apart < 1e-6
    assert not any(each in line for line in said for each in (*COUPLES, CUTS, WRITES))
    assert not refused


@pytest.mark.parametrize("name", WRITTEN)
def test_rows_that_are_written_into_what_stays_are_named(ran: Ran, name: str) -> None:
    apart, said, _ = ran[name]
    assert apart > 1e-4
    assert sum(WRITES in line for line in said) == 1


@pytest.mark.parametrize("name", CUT)
def test_parts_of_a_batch_that_are_other_rows_on_a_share_are_named(ran: Ran, name: str) -> None:
    apart, said, _ = ran[name]
    assert apart > 1e-4
    assert sum(CUTS in line for line in said) == 1


@pytest.mark.parametrize("name", FOUND_LATE)
def test_a_loss_that_was_taken_for_another_is_named_and_refused(ran: Ran, name: str) -> None:
    apart, said, refused = ran[name]
    assert apart > 1e-4
    assert sum("the steps until now took it for" in line for line in said) == 1
    assert not any("exact" in line for line in said)
    assert "strict=True" in refused


def _drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def _standard(x: torch.Tensor, *dims: int) -> torch.Tensor:
    return (x - x.mean(dims, keepdim=True)) / x.std(dims, correction=0, keepdim=True)


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (_drawn(6).softmax(0), 1.0),
        (_drawn(6, 3).softmax(0), 1.0),
        (torch.full((6,), 1 / 6), 1.0),
        (_drawn(6).exp() / _drawn(6).exp().mean(), 2.0),
        (_standard(_drawn(6), 0), 3.0),
        (_standard(_drawn(6, 3), 0), 3.0),
        (_drawn(6) - _drawn(6).mean(), 4.0),
        (_drawn(6), 0.0),
        (_drawn(6, 3).softmax(1), 0.0),
        (_standard(_drawn(6, 3), 1), 0.0),
        (torch.ones(6) + 1e-5 * _drawn(6), 0.0),
        (torch.eye(6), -float("inf")),
        (torch.tensor([0.5, -0.5, -0.5, 0.5]), -float("inf")),
        (_drawn(3).softmax(0), -float("inf")),
        (_drawn(6).log(), -float("inf")),
    ],
)
def test_a_form_is_told_from_numbers(value: torch.Tensor, form: float) -> None:
    assert form_of(value, 0) == form
