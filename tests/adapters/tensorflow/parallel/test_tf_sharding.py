"""Keras models on a DTensor mesh: what lies where, what equals one device, what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tf_split_launching import close, found

pytestmark = pytest.mark.slow
EXHAUSTIVE = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    return found("tf_sharding_jobs", "mesh")[0]


@pytest.fixture(scope="module")
def more() -> dict[str, Any]:
    return found("tf_sharding_jobs", "further")[0]


def _by_level(request: pytest.FixtureRequest, zero: int, *always: int) -> dict[str, Any]:
    """What levels of ZeRO come to; those that `make exhaustive` runs are another job's."""
    figures: dict[str, Any] = request.getfixturevalue("here" if zero in always else "more")
    return figures


@pytest.mark.parametrize("zero", [1, pytest.param(2, marks=EXHAUSTIVE), 3])
def test_each_device_holds_its_part(request: pytest.FixtureRequest, zero: int) -> None:
    here = _by_level(request, zero, 1, 3)
    figures = here[f"zero{zero}"]
    close(figures["weights"], here["one"])
    held, whole = figures["states"]
    assert held == [whole / 2, whole / 2]
    for what, first in (("gradients", 2), ("parameters", 3)):
        held, whole = figures[what]
        assert held == ([whole / 2] * 2 if zero >= first else [whole] * 2), what


@pytest.mark.parametrize("zero", [*(pytest.param(z, marks=EXHAUSTIVE) for z in (1, 2)), 3])
def test_statistics_of_a_batch_are_those_of_one_device(
    request: pytest.FixtureRequest, zero: int
) -> None:
    here = _by_level(request, zero, 3)
    ours, theirs = list(here[f"normalised{zero}"]), list(here["one normalised"])
    del ours[1], theirs[1]  # the bias before the normalisation: its gradient is rounding noise
    close(ours, theirs)


def test_clipping_acts_on_the_global_gradient(here: dict[str, Any]) -> None:
    close(
        [here["clipped"][0], *here["clipped"][1]], [here["one clipped"][0], *here["one clipped"][1]]
    )
    close(here["keras clips"], here["one keras clips"])
    close(here["scaled"], here["one scaled"])
    close(here["keras accumulates"], here["one keras accumulates"])


def test_a_sharded_gradient_adds_up_over_micro_batches(here: dict[str, Any]) -> None:
    close(here["accumulated"], here["one"])


def test_a_gradient_that_is_too_large_is_skipped(here: dict[str, Any]) -> None:
    assert here["one overflowing"][-1] < 1
    close(here["overflowing"], here["one overflowing"])


def test_data_of_unknown_length_counts_the_iterations_of_keras(here: dict[str, Any]) -> None:
    """Keras counts one more where an epoch is found to be over, and Adam's next update feels it."""
    assert here["one of unknown length"][0] > 8
    close(here["of unknown length"], here["one of unknown length"])


def test_what_a_layer_was_adapted_to_is_on_every_device(here: dict[str, Any]) -> None:
    close(here["adapted"], here["one adapted"])


def test_batches_that_a_loop_gives_train(here: dict[str, Any]) -> None:
    """They come as arrays, with None for what was not given: a TypeError of TensorFlow's once."""
    close(here["batch by batch"], here["one batch by batch"])


def test_random_layers_train(here: dict[str, Any]) -> None:
    assert here["dropped"] < 1.25  # 1.39 before; one device comes to 1.14


def test_outside_of_a_step_a_model_is_an_ordinary_one(here: dict[str, Any]) -> None:
    np.testing.assert_allclose(here["eager"], here["predicted"], atol=1e-5)


def test_attention_is_split_by_its_heads(here: dict[str, Any]) -> None:
    found = here["attention layouts"]
    assert found["mha/query/kernel"] == ["unsharded", "model", "unsharded"]
    assert found["mha/attention_output/kernel"] == ["model", "unsharded", "unsharded"]
    assert found["mha/attention_output/bias"] == ["unsharded"]


def test_a_plan_is_followed_and_found(here: dict[str, Any]) -> None:
    planned, weights = here["planned"]
    for layout in (planned, here["auto layouts"]):
        assert layout["fc1/kernel"] == ["unsharded", "model"]
        assert layout["fc1/bias"] == ["model"]
        assert layout["fc2/kernel"] == ["model", "unsharded"]
    close(weights, here["one"])


@pytest.mark.parametrize(
    ("case", "kind", "words"),
    [
        ("recurrent", "Unsupported", ["'memory' (LSTM)", "split='pipeline'"]),
        ("depthwise", "Unsupported", ["'apart' (SeparableConv2D)", "split='pipeline'"]),
        ("spectral", "Unsupported", ["'even' (SpectralNormalization)", "split='pipeline'"]),
        ("by hand", "ConfigurationError", ["train_step"]),
        ("weigh", "Unsupported", ["train_step"]),
        ("foreign", "Unsupported", ["has not laid out", "add_weight"]),
        ("groups", "Unsupported", ["data=2", "hybrid"]),
        ("local", "Unsupported", ["sync_batch_norm=False", "'mirrored'"]),
        ("nothing", "ConfigurationError", ["No layer of this model is split", "'sharded'"]),
        ("convolution", "Unsupported", ["'conv' (Conv2D)", "split='pipeline'"]),
        ("typo", "ConfigurationError", ["'fc9'", "fc1"]),
        ("way", "ConfigurationError", ["'diagonal'", "'column'"]),
        ("odd", "ConfigurationError", ["'odd' with 5", "model=2"]),
        ("equation", "ConfigurationError", ["data 2 x model 2 = 4, replicas 2"]),
    ],
)
def test_what_is_refused_is_named(
    here: dict[str, Any], case: str, kind: str, words: list[str]
) -> None:
    assert str(here[case]).startswith(kind), here[case]
    for word in words:
        assert word in here[case], here[case]


def test_ranks_hold_their_part_and_are_alike(here: dict[str, Any]) -> None:
    first, second = found("tf_sharding_jobs", "ranks", 2)
    for rank in (first, second):
        close(rank["weights"], here["one"])
        held, whole = rank["bytes"]
        assert held == [whole / 2]
        assert rank["losses"] == first["losses"]
        assert rank["differ"].startswith("Desynchronized: The ranks built different models")
        assert rank["other data"].startswith("Desynchronized: The ranks' data differ")
        names, apart, refused = rank["files"]
        assert (names, apart) == (["best.keras", "whole.keras"], [0.0, 0.0, 0.0])
        assert refused.startswith("Unsupported")
        assert "ModelCheckpoint" in refused
        read, wrote = rank["alone"]
        assert "rank 0: read(" in read
        assert "rank 1: all_gather()" in read  # fit begins with its generators
        assert "set_by_hand=" in wrote


def test_what_a_function_assigned_is_what_it_reads() -> None:
    """DTensor loses that order: a variable would read as before it was assigned."""
    (figures,) = found("tf_sharding_jobs", "orders")
    assert np.array_equal(figures["dream"], np.full((8, 64), 2.0))


def test_the_experimental_names_are_there() -> None:
    (names,) = found("tf_sharding_jobs", "names")
    assert names == []


@pytest.fixture(scope="module")
def making() -> list[dict[str, Any]]:
    return found("tf_sharding_jobs", "making", 2)


def test_a_variable_is_in_parts_before_the_first_step(making: list[dict[str, Any]]) -> None:
    for rank in making:
        assert set(rank["kinds"]) == {"MeshVariable"}
        assert rank["narrow"] == ("<dtype: 'bfloat16'>", 32)


@pytest.mark.parametrize("what", ["made", "state"])
def test_no_rank_has_all_while_it_is_made(making: list[dict[str, Any]], what: str) -> None:
    """Of a model and of its optimizer's state, 94 MB each in 40 layers: 47 MB for each of two
    ranks, and some layers on their way."""
    for rank in making:
        figures = rank["peak"]
        assert 0.45 <= figures[what] / figures["whole"] <= 0.75, figures


def test_the_first_values_are_those_of_rank_0(making: list[dict[str, Any]]) -> None:
    (drawn,), _ = making[0]["apart"]
    (other,), _ = making[1]["apart"]
    assert np.abs(drawn - other).max() > 1e-2
    for rank in making:
        assert np.array_equal(rank["apart"][1][0], drawn)


@pytest.mark.parametrize("how", ["lazy", "late", "steps"])
def test_models_that_wait_for_a_batch_are_one_device(
    making: list[dict[str, Any]], how: str
) -> None:
    """By fit, by fit after the block, by train_step."""
    for rank in making:
        close(rank[how], rank["one"])


def test_ranks_that_make_or_set_something_else_are_told(making: list[dict[str, Any]]) -> None:
    for rank in making:
        assert rank["differ"].startswith("Desynchronized: The ranks built different models")
        assert "odd/kernel" in rank["differ"]
        assert rank["set apart"].startswith("Desynchronized")
        assert "set_by_hand=" in rank["set apart"]


@pytest.fixture(scope="module")
def optimizers() -> list[dict[str, Any]]:
    return found("tf_sharding_jobs", "optimizers", 2)


@EXHAUSTIVE
def test_a_scaled_loss_is_clipped_by_its_own_norm(optimizers: list[dict[str, Any]]) -> None:
    for rank in optimizers:
        close(rank["scaled"], rank["one scaled"])


@EXHAUSTIVE
@pytest.mark.parametrize("name", ["sharded", "tensor", "pipeline"])
def test_adamw_is_within_one_devices_own_noise(name: str) -> None:
    """Where a gradient is small, AdamW makes much of the last bits of a sum: one device that sums
    each batch in parts lies as far from itself."""
    for rank in found("tf_sharding_jobs", "stages" if name == "pipeline" else "optimizers", 2):
        for ours, one, *parts in zip(rank[name], rank["one"], *rank["in parts"], strict=True):
            noise = max(float(np.abs(part - one).max()) for part in parts)
            apart = float(np.abs(ours - one).max())
            assert apart <= max(1e-6, 3 * noise), (ours.shape, apart, noise)


@EXHAUSTIVE
def test_adamws_state_is_in_parts(optimizers: list[dict[str, Any]]) -> None:
    for rank in optimizers:
        held, whole = rank["states"]
        assert held == [whole / 2]


LOGGING = """
import logging
import keras
import dream
assert not logging.getLogger().handlers
with dream.strategy("mirrored"):
    pass
logging.basicConfig(format="own %(message)s", level=logging.INFO)
logging.info("line")
"""


def test_a_mesh_that_is_joined_early_leaves_logging_to_the_script(tmp_path: Path) -> None:
    """TensorFlow says a line as it joins, which set logging up: dream's lines came as INFO:dream,
    and the script's own basicConfig did nothing."""
    (tmp_path / "script.py").write_text(LOGGING)
    done = subprocess.run(
        [sys.executable, "-m", "dream", "run", "-n", "2", "--strategy", "sharded", "script.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "dream: strategy 'sharded' in place" in done.stderr
    assert "own line" in done.stderr
