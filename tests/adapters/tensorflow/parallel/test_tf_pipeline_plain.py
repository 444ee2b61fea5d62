"""Plain scripts in pipelines: losses that are sums, dropout, weights, callbacks that watch a
validation. Each learns what it learns without dream, or is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from tf_split_launching import found, same

pytestmark = pytest.mark.slow
SCRIPTS = ("summed", "dropped", "weighed", "stopped", "accumulated")
FORMS = {
    "on ranks": ("dropped",),
    "one row": ("summed", "stopped"),
    "two rows": ("weighed", "accumulated"),
}
"""Two rows of two stages on ranks, and stages and rows of one process: the scripts of each that
hold it; `make exhaustive` runs all in all."""
MODULE = "tf_pipeline_plain"
Asked = dict[str, tuple[str, ...]]


@pytest.fixture(scope="module")
def asked(request: pytest.FixtureRequest) -> Asked:
    """The scripts that the collected tests ask of each form."""
    calls = [
        item.callspec.params
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    return {
        form: tuple(call["script"] for call in calls if call.get("form") == form) for form in FORMS
    }


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return found(MODULE, "plain")[0]


@pytest.fixture(scope="module")
def stages(asked: Asked) -> dict[str, Any]:
    return found(MODULE, "stages", 1, asked["one row"], asked["two rows"])[0]


@pytest.mark.parametrize(
    ("form", "script"),
    [
        pytest.param(form, script, marks=() if script in held else pytest.mark.exhaustive)
        for form, held in FORMS.items()
        for script in SCRIPTS
    ],
)
def test_a_script_learns_what_it_does_without_dream(
    request: pytest.FixtureRequest, asked: Asked, plain: dict[str, Any], form: str, script: str
) -> None:
    if form == "on ranks":
        for rank in found(MODULE, "hybrid", 4, asked[form]):
            same(rank[script], plain[script])
    else:
        same(request.getfixturevalue("stages")[form][script], plain[script])


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
