"""A loop that ends with the loader beside it goes on as if it had not been stopped; one that is
left in its midst, which only its script can tell from one that was stopped, is told."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import checkpoint_left
import pytest
from checkpoint_left import IN_TENSORFLOW, LOOPS
from launch_scripts import ON_TORCH, keras_on

import dream

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("framework", "loops"),
    [
        pytest.param("torch", LOOPS, id="torch"),
        pytest.param("tensorflow", IN_TENSORFLOW, id="tensorflow"),
        pytest.param("tensorflow", LOOPS, id="all", marks=pytest.mark.exhaustive),
    ],
)
def test_a_loop_that_ends_early_goes_on_or_is_told(
    framework: str, loops: Iterable[str], tmp_path: Path
) -> None:
    on = {**ON_TORCH, "framework": framework}
    if framework == "tensorflow":
        on["env"] = keras_on(framework)
    found = dream.launch(checkpoint_left.left, str(tmp_path), framework, [*loops], n=1, **on)[0]
    assert {*found} == {*loops}
    for name, (gap, lines) in found.items():
        assert lines == (0 if name in checkpoint_left.KEPT else 1), (name, lines)
        assert name not in checkpoint_left.KEPT or gap < 1e-6, (name, gap)


@pytest.mark.parametrize("seed", [None, 3])
def test_a_pass_draws_what_it_drew_wherever_it_was_saved(seed: int | None, tmp_path: Path) -> None:
    """Torch's loaders draw as a pass is asked for, whoever gives the order: a training that is
    saved after that, as where several loaders begin together, drew once more where it went on, so
    dropout and all later orders were others."""
    found = dream.launch(checkpoint_left.begun, str(tmp_path), seed, n=1, **ON_TORCH)[0]
    assert found == {"asked": 0.0, "handed": 0.0}


def test_workers_that_stay_draw_once(tmp_path: Path) -> None:
    """A loader whose workers stay seeds them in its first pass alone: where training went on they
    were seeded once more, so later orders were others, or were refused."""
    found = dream.launch(checkpoint_left.lasting, str(tmp_path), n=1, **ON_TORCH)[0]
    assert found == {"ended": 0.0, "asked": 0.0, "handed": 0.0}
