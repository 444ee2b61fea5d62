"""What a rank holds under `sharded`, and when."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gpu_habits
import pytest
from sharding_cases import RANKS, figures, found

import dream

pytestmark = pytest.mark.slow
SMALL = 1024  # bytes of a count, of a padded row: what does not fall with the ranks


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(
    ("zero", "sharded"),
    [
        (1, ("state",)),
        (2, ("state", "gradients", "parameters")),
        (3, ("state", "gradients", "parameters", "between")),
    ],
)
def test_bytes_fall_as_one_over_the_ranks(zero: int, sharded: tuple[str, ...], ranks: int) -> None:
    """Of parameters and gradients after a step, parameters between forward and backward, and
    Adam's two moments."""
    for rank in found(ranks):
        held = rank[f"memory {zero}"]
        for what in ("parameters", "gradients", "between", "state"):
            whole = held["whole"] * (2 if what == "state" else 1)
            share = whole / ranks if what in sharded else whole
            # The root's own parameters stay gathered between forward and backward.
            slack = SMALL + (256 * 4 + 4) * 4 if what == "between" else SMALL
            assert abs(held[what] - share) <= slack, (what, held)


@pytest.mark.exhaustive
@pytest.mark.parametrize("zero", [1, 3])
def test_hybrid_sharding_holds_a_shard_of_a_group(zero: int) -> None:
    for rank in found(4):
        held = rank[f"memory {zero} data 2"]
        assert abs(held["state"] - held["whole"]) <= SMALL
        share = held["whole"] / (2 if zero == 3 else 1)
        assert abs(held["parameters"] - share) <= SMALL


def test_a_part_may_be_called_before_the_whole() -> None:
    for zero, said in figures("part_first"):
        assert said == "nothing was raised", zero


def test_what_a_unit_gives_may_be_changed_in_place() -> None:
    for what, case in figures("changed_in_place"):
        assert max(case.values()) <= 1e-6, (what, case)


def test_a_part_that_is_called_to_evaluate_has_what_is_gathered_with_the_whole() -> None:
    """As an encoder whose embedding the decoder has too, when text is written."""
    for zero, gap in figures("part_for_itself"):
        assert gap <= 1e-6, zero


@pytest.mark.parametrize("width", [6, 9])
def test_ranks_that_call_other_parts_end_before_they_gather_them(width: int) -> None:
    """What is gathered of parts of two sizes ended a rank within gloo."""
    said = _ended("sharding_experts.py", width, 0)
    assert "The ranks are not in the same call" in said
    assert "rank 0: forward(part='experts.1')" in said
    assert "call the same parts whatever a rank's rows are, or use 'mirrored'" in said


def test_a_rank_that_calls_fewer_parts_is_told_so() -> None:
    """The other waited for it in a part that it never gathers."""
    said = _ended("sharding_heads.py")
    assert "rank 0: backward(); rank 1: forward(part='heads.1')" in said


def test_ranks_that_come_to_call_other_parts_are_told_so() -> None:
    """Messages of parts that are of one size would be taken for each other's."""
    said = _ended("sharding_experts.py", 6, 9)
    assert "The ranks call different parts of a model" in said
    assert "experts.1 on rank 0" in said


def _ended(script: str, *given: object) -> str:
    """What a script on two ranks says that ends by an error."""
    path = Path(__file__).with_name(script)
    command = [sys.executable, "-m", "dream", "run", "-n", "2", str(path), *map(str, given)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "DREAM_STALL_SECONDS": "40"},
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    return said


@pytest.mark.parametrize("zero", [3, pytest.param(2, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("what", gpu_habits.LOSSES)
def test_what_torch_does_on_gpus_leaves_the_gradient_whole(what: str, zero: int) -> None:
    """FSDP2 lost what a gradient of a gradient added, and computed by a GRU's first weights."""
    expected = gpu_habits.train(what)
    for rank in dream.launch(gpu_habits.sharded, what, zero, n=2, framework="torch"):
        assert rank == pytest.approx(expected, rel=0, abs=1e-6)
