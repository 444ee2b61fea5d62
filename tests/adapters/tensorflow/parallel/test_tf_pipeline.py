"""Pipelines and layers on the devices of one process and on ranks: what is where, what equals one
device, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tf_split_launching import close, found

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    return found("tf_pipeline_jobs", "parts")[0]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_every_schedule_is_one_device(here: dict[str, Any], schedule: str) -> None:
    close(here[schedule], here["one"])


def test_stages_may_be_evened_out_by_time(here: dict[str, Any]) -> None:
    devices, weights = here["timed"]
    assert [d for name, d in devices.items() if name.startswith("long")] == ["CPU:0"] * 2
    assert [d for name, d in devices.items() if name.startswith("short")] == ["CPU:1"] * 2
    close(weights, here["one slow"])


def test_a_stages_variables_and_slots_lie_on_its_device(here: dict[str, Any]) -> None:
    for name, device in here["variables"].items():
        assert device == ("CPU:0" if name.startswith("fc1") else "CPU:1"), name
    for name, device in here["slots"].items():
        later = "_fc2_" in name or "_head_" in name
        assert device == ("CPU:1" if later else "CPU:0"), name


def test_a_stage_computes_on_its_device_forward_and_back(here: dict[str, Any]) -> None:
    assert set(here["ops"]) == {"CPU:0", "CPU:1"}
    for device, seen in here["ops"].items():
        assert len(seen) >= 3
        assert set(seen) == {device}


def test_unequal_counts_weigh_as_on_one_device(here: dict[str, Any]) -> None:
    close(here["counted"], here["one counted"])


def test_what_keras_accumulates_is_clipped_then(here: dict[str, Any]) -> None:
    close(here["keras accumulates"], here["one keras accumulates"])


def test_what_keras_scales_a_loss_by_is_divided_out_again(here: dict[str, Any]) -> None:
    close(here["factor"], here["one"])


def test_weights_may_be_halves(here: dict[str, Any]) -> None:
    assert {w.dtype.name for w in here["halved"]} == {"float16"}
    close(here["halved"], here["one halved"], 2e-3)


def test_one_microbatch_is_normalised_as_on_one_device(here: dict[str, Any]) -> None:
    ours, theirs = list(here["one microbatch"]), list(here["one normalised"])
    del ours[1], theirs[1]  # the bias before the normalisation: its gradient is rounding noise
    close(ours, theirs)


def test_each_outputs_loss_is_told_as_on_one_device(here: dict[str, Any]) -> None:
    ours, theirs = here["outputs"], here["one outputs"]
    close(ours["weights"], theirs["weights"])
    assert ours["tested"] == pytest.approx(theirs["tested"], abs=3e-6)
    for name, values in theirs["history"].items():
        assert ours["history"][name] == pytest.approx(values, abs=3e-6)


def test_weights_set_by_hand_count_in_every_row(here: dict[str, Any]) -> None:
    weights, tested = here["set between"]
    close(weights, here["one set between"][0])
    assert tested == pytest.approx(here["one set between"][1], abs=1e-6)


def test_layers_lie_where_they_are_placed(here: dict[str, Any]) -> None:
    devices, weights = here["layers"]
    assert devices["left/kernel"] == "CPU:0"
    assert devices["right/kernel"] == devices["join/kernel"] == "CPU:1"
    close(weights, here["one branches"])


@pytest.mark.parametrize(
    ("case", "kind", "words"),
    [
        ("normalised", "Unsupported", ["'bn'", "microbatches=1", "'sharded'"]),
        ("copies", "Unsupported", ["recompute=True", "data=2", "dream run -n 2"]),
        ("hidden", "Unsupported", ["Hidden", "split='tensor'"]),
        ("twice", "Unsupported", ["'again'"]),
        ("own loss", "Unsupported", ["OwnLoss.compute_loss", "'sharded'"]),
        ("typo", "ConfigurationError", ["'fc2'", "left, right"]),
        ("too many", "ConfigurationError", ["microbatches=20", "batch size 16"]),
        ("no device", "ConfigurationError", ["'left': 2", "model=2"]),
        ("equation", "ConfigurationError", ["data 2 x model 2 = 4, replicas 2"]),
    ],
)
def test_what_is_refused_is_named(
    here: dict[str, Any], case: str, kind: str, words: list[str]
) -> None:
    assert str(here[case]).startswith(kind), here[case]
    for word in words:
        assert word in here[case], here[case]


@pytest.fixture(scope="module")
def one() -> dict[str, Any]:
    return found("tf_pipeline_jobs", "one")[0]


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return found("tf_pipeline_jobs", "two", 2)


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
        assert apart == [0.0, 0.0, 0.0]
        assert refused.startswith("Unsupported")
        assert "ModelCheckpoint" in refused


def test_what_one_rank_does_alone_is_told_at_once(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        read, wrote = rank["alone"]
        assert "rank 0: read(" in read
        assert "rank 1: all_gather()" in read  # fit begins with its generators
        assert "set_by_hand=" in wrote
    assert "strategy.full_state(model)" in ranks[0]["alone"][0]


@pytest.mark.parametrize(
    ("case", "kind", "words"),
    [
        ("accumulating", "Unsupported", ["gradient_accumulation_steps=2", "norm of 1.0"]),
        ("by hand", "ConfigurationError", ["train_step"]),
    ],
)
def test_what_is_refused_on_ranks_is_named(
    ranks: list[dict[str, Any]], case: str, kind: str, words: list[str]
) -> None:
    for rank in ranks:
        assert str(rank[case]).startswith(kind), rank[case]
        for word in words:
            assert word in rank[case], rank[case]


@pytest.mark.exhaustive
def test_two_rows_of_stages_are_one_device(one: dict[str, Any]) -> None:
    for rank in found("tf_pipeline_jobs", "four", 4):
        close(rank["weights"], one["clipped by fit"])
        close(rank["stepped"], one["weights"])
        assert rank["losses"] == pytest.approx(one["plain losses"], abs=2e-6)
        np.testing.assert_allclose(rank["predicted"], one["predicted after"], atol=1e-6)
