"""Keras models whose parts lie on several ranks: what is where, what equals one device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from split_launching import found
from test_tf_mesh import close

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def one() -> dict[str, Any]:
    return found("split_across", "one")[0]


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return found("split_across", "two", 2)


def test_stages_on_ranks_are_one_device(ranks: list[dict[str, Any]], one: dict[str, Any]) -> None:
    for rank in ranks:
        close(rank["weights"], one["weights"])
        close(rank["timed"], one["weights"])
        for ours, first in zip(rank["weights"], ranks[0]["weights"], strict=True):
            assert np.array_equal(ours, first)


def test_a_rank_holds_its_stage_and_its_slots_alone(ranks: list[dict[str, Any]]) -> None:
    first, second = ranks
    assert first["here"] == ["OwnedVariable"] * 2 + ["RemoteVariable"] * 4
    assert second["here"] == ["RemoteVariable"] * 2 + ["OwnedVariable"] * 4
    assert (first["slots"].count("OwnedVariable"), second["slots"].count("OwnedVariable")) == (2, 4)


def test_the_norm_is_that_of_all_stages(ranks: list[dict[str, Any]], one: dict[str, Any]) -> None:
    for rank in ranks:
        assert rank["losses"] == pytest.approx(one["losses"], abs=2e-6)
        close(rank["clipped"], one["clipped"])


def test_a_step_that_one_stage_skips_is_skipped_by_all(
    ranks: list[dict[str, Any]], one: dict[str, Any]
) -> None:
    assert one["overflowing"][-1] < 1
    for rank in ranks:
        close(rank["overflowing"], one["overflowing"])


def test_every_rank_predicts_all(ranks: list[dict[str, Any]], one: dict[str, Any]) -> None:
    for rank in ranks:
        np.testing.assert_allclose(rank["predicted"], one["predicted"], atol=1e-6)


def test_penalties_of_all_stages_count(ranks: list[dict[str, Any]], one: dict[str, Any]) -> None:
    for rank in ranks:
        ours, theirs = rank["penalised"], one["penalised"]
        close(ours["weights"], theirs["weights"])
        assert ours["tested"] == pytest.approx(theirs["tested"], abs=3e-6)
        assert set(ours["history"]) == {"loss", "kind_loss", "again_loss", "kind_accuracy"}
        for name, values in theirs["history"].items():
            assert ours["history"][name] == pytest.approx(values, abs=3e-6)


def test_branches_on_two_ranks(ranks: list[dict[str, Any]], one: dict[str, Any]) -> None:
    for rank, right in zip(ranks, ("RemoteVariable", "OwnedVariable"), strict=True):
        kinds, weights = rank["layers"]
        assert kinds[2:] == [right] * 4
        assert kinds[:2] != kinds[2:4]
        close(weights, one["layers"])


def test_files_are_whole_and_written_once(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        names, apart, refused = rank["files"]
        assert names == ["best.keras", "whole.keras"]
        assert apart == [0.0, 0.0]
        assert refused.startswith("Unsupported")
        assert "ModelCheckpoint" in refused


def test_what_one_rank_does_alone_is_told_at_once(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        read, wrote = rank["alone"]
        assert "rank 0: read(" in read
        assert "rank 1: train step(" in read
        assert "set_by_hand=" in wrote
    assert "strategy.full_state(model)" in ranks[0]["alone"][0]


@pytest.mark.parametrize(
    ("case", "kind", "words"),
    [
        ("accumulating", "Unsupported", ["gradient_accumulation_steps=2", "norm of 1.0"]),
        ("by hand", "ConfigurationError", ["train_step"]),
    ],
)
def test_what_is_refused_is_named(
    ranks: list[dict[str, Any]], case: str, kind: str, words: list[str]
) -> None:
    for rank in ranks:
        assert str(rank[case]).startswith(kind), rank[case]
        for word in words:
            assert word in rank[case], rank[case]


@pytest.mark.exhaustive
def test_two_rows_of_stages_are_one_device(one: dict[str, Any]) -> None:
    for rank in found("split_across", "four", 4):
        close(rank["weights"], one["clipped by fit"])
        close(rank["stepped"], one["weights"])
        assert rank["losses"] == pytest.approx(one["plain losses"], abs=2e-6)
        np.testing.assert_allclose(rank["predicted"], one["predicted after"], atol=1e-6)
