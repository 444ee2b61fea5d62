"""Pipelines and layers on the devices of one process."""

from __future__ import annotations

from typing import Any

import pytest
from split_launching import found
from test_tf_mesh import close

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    return found("split_parts", "parts")[0]


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
