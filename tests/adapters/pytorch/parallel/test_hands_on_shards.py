"""Loops that lay hands on gradients and parameters in shards learn what they learn alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import hands_on_shards as cases
import pytest

import dream

pytestmark = pytest.mark.slow


def both() -> dict[str, Any]:
    told = {"unlike": cases.unlike(), "written": cases.written(), "func": cases.by_functions()}
    more = {
        "late": cases.cleared_late(),
        "sampled": cases.sampled(),
        "pulled": cases.pulled_apart(),
    }
    return cases.apart() | told | more


@cache
def found() -> list[dict[str, Any]]:
    return dream.launch(both, n=2, framework="torch", timeout=300)


@pytest.mark.parametrize("name", [*(act.__name__ for act in cases.HANDS), *cases.OPTIMIZERS])
def test_by_hand_as_on_one_device(name: str) -> None:
    bound = 6e-5 if name == "lbfgs" else 2e-6  # whose curvature enlarges the rounding of sums
    for rank in found():
        assert rank[name] <= bound


def test_what_the_ranks_have_otherwise_is_not_cut() -> None:
    for rank in found():
        assert "other values" in rank["unlike"]


@pytest.mark.parametrize("clear", [each.__name__ for each in cases.CLEARS])
def test_gradients_are_cleared_between_a_call_and_its_backward(clear: str) -> None:
    """Those of the last step stayed in the shards, and were added to in silence (1e-1)."""
    for rank in found():
        assert rank["late"][clear] <= 1e-6


def test_gradients_of_torch_func_are_refused_on_shards() -> None:
    """Each rank had those of its own rows, in silence, or ended within gloo."""
    for rank in found():
        for said in rank["func"]:
            assert "inside torch.func (Grad)" in said


@pytest.mark.parametrize("name", cases.WRITES)
def test_what_would_be_lost_is_not_written(name: str) -> None:
    for rank in found():
        assert "would be lost" in rank["written"][name]
        assert "parameter.full_tensor()" in rank["written"][name]


def test_what_is_no_copy_is_written_and_read() -> None:
    for rank in found():
        assert rank["written"]["read"] == "24.0 3.0"


def test_a_method_without_gradients_computes_with_whole_parameters() -> None:
    """It was refused; lists and arrays of a parameter ended in torch's words."""
    for rank in found():
        assert rank["sampled"]["gap"] <= 1e-6
        assert rank["sampled"]["alike"]


def test_what_forward_writes_without_gradients_is_no_more_lost_in_silence() -> None:
    for rank in found():
        assert "A forward pass writes to a parameter that is sharded" in rank["sampled"]["said"]


def test_a_loss_pulls_parameters_to_copies_of_them() -> None:
    """With zero=2, where they stay gathered after a call, it ended in torch's words."""
    for rank in found():
        assert rank["pulled"] <= 1e-6
