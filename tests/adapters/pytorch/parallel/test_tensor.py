"""Layers cut over the model axis: which, and that the numbers are those of one device."""

from __future__ import annotations

import pytest
import sharding_models
from sharding_cases import found

pytestmark = pytest.mark.slow


def test_what_stays_whole_is_told() -> None:
    first, *others = (rank["plans"]["told"] for rank in found(2))
    (line,) = [line for line in first if "stay" in line]
    assert "layer.self_attn (MultiheadAttention), whose query, key and value are packed" in line
    assert not any("stay" in line for lines in others for line in lines)


def test_pieces_are_computed_with_as_wholes_are() -> None:
    for rank in found(2):
        for name, case in rank["pieces"].items():
            if name == "refused":
                for what, said in case.items():
                    assert said.startswith("Unsupported: A tensor of which each rank"), said
                    assert what in said
            else:
                assert case["stays"], name
                assert case["apart"] <= 1e-5, (name, case)
                assert case["gradients"] <= 1e-5, (name, case)


def test_a_plan_cuts_the_layers_it_names() -> None:
    wide, half = sharding_models.WIDTH, sharding_models.WIDTH // 2
    for rank in found(2):
        auto, hand = rank["plans"]["auto"]["shapes"], rank["plans"]["by hand"]["shapes"]
        for name in ("query", "key", "value"):
            assert auto[f"blocks.1.attend.{name}.weight"] == (half, wide)
            assert hand[f"blocks.1.attend.{name}.weight"] == (wide, wide)
        assert auto["blocks.0.attend.out.weight"] == (wide, half)
        assert auto["words.weight"] == (10, wide)
        assert hand["words.weight"] == (20, half)
        assert hand["head.weight"] == (2, wide)
        for shapes in (auto, hand):
            assert shapes["blocks.0.up.weight"] == (2 * wide, wide)
            assert shapes["blocks.0.down.weight"] == (wide, 2 * wide)


def test_every_plan_gives_the_numbers_of_one_device() -> None:
    """Dropout in a cut layer draws the mask that one device draws."""
    for rank in found(2):
        plans = rank["plans"]
        for case in (plans["auto"]["apart"], plans["by hand"]["apart"]):
            assert max(case.values()) <= 1e-6, case
        for what in ("dropout", "encoder", "tied", "one head", "permuted", "bias", "hasty 0.0",
                     "hasty 0.3", "called again", "chancy"):  # fmt: skip
            assert max(plans[what].values()) <= 1e-6, (what, plans[what])


def test_of_a_whole_batch_no_loss_is_doubtful() -> None:
    """Though every rank holds a part of the model, each has all samples."""
    assert [rank["plans"]["whole batch"] for rank in found(2)] == ["nothing was raised"] * 2


def test_a_layer_that_is_replaced_beside_its_other_half_is_named() -> None:
    for rank in found(2):
        for name, said in rank["plans"]["replaced"].items():
            assert said.startswith("ConfigurationError: A layer was replaced"), said
            assert f"another {name} in _Pair" in said


def test_a_loss_of_a_layer_inside_is_that_of_one_device_or_refused() -> None:
    """A mean over a rank's columns was taken for one over all, in silence."""
    for rank in found(2):
        for what, case in rank["kept_inside"]["apart"].items():
            assert max(case.values()) <= 1e-6, what
        assert "a loss of what follows 'inner.0'" in rank["kept_inside"]["said"]
