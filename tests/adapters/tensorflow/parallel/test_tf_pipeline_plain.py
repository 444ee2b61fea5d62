"""Plain scripts in pipelines: losses that are sums, dropout, weights, callbacks that watch a
validation. Each learns what it learns without dream, or is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from tf_split_launching import found, same

pytestmark = pytest.mark.slow
SCRIPTS = ["summed", "dropped", "weighed", "stopped", "accumulated"]
MODULE = "tf_pipeline_plain"


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return found(MODULE, "plain")[0]


@pytest.fixture(scope="module")
def stages() -> dict[str, Any]:
    return found(MODULE, "stages")[0]


@pytest.mark.parametrize("script", SCRIPTS)
def test_two_rows_of_stages_on_ranks_learn_what_the_script_does(
    plain: dict[str, Any], script: str
) -> None:
    for rank in found(MODULE, "hybrid", 4):
        same(rank[script], plain[script])


@pytest.mark.parametrize("rows", ["one row", "two rows"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_so_do_stages_and_rows_of_one_process(
    plain: dict[str, Any], stages: dict[str, Any], script: str, rows: str
) -> None:
    same(stages[rows][script], plain[script])


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("weights", ["mean_with_sample_weight", "'mirrored'"]),
        ("unreduced", ["MeanSquaredError(reduction='none')"]),
        ("loss draws", ["Stateless", "in the loss of"]),
        ("shared", ["shared by layers of stages 0 and 1"]),
        ("unseeded", ["keras.random without seed=", "SeedGenerator"]),
        ("mask", ["called several times"]),
        ("stateful", ["stateful=True"]),
        ("state", ["vector_u", "microbatches=1"]),
    ],
)
def test_what_would_be_another_model_is_refused(
    stages: dict[str, Any], case: str, words: list[str]
) -> None:
    said = str(stages["refused"][case])
    assert said.startswith("Unsupported"), said
    for word in words:
        assert word in said, said


def test_a_call_that_couples_samples_is_named_and_one_that_draws_is_not(
    stages: dict[str, Any],
) -> None:
    drawing, (output,), (gradient,), shuffled = stages["couplings"]
    assert not drawing
    assert "another output in a part" in output
    assert "another gradient in a part" in gradient
    assert any("A shuffle inside a training step" in line for line in shuffled)


def test_what_is_computed_again_draws_the_same(
    plain: dict[str, Any], stages: dict[str, Any]
) -> None:
    same(stages["recomputed"], plain["dropped"])
