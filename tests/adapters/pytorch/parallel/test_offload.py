"""`sharded` with shards on the host: numbers of one device, by one rank too."""

from __future__ import annotations

from typing import Any

import offload_cases
import pytest

import dream
from dream import ConfigurationError, Unsupported

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.exhaustive), 2])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = str(tmp_path_factory.mktemp("kept"))
    job = offload_cases.everything
    return dream.launch(job, folder, n=request.param, framework="torch", timeout=600)


def test_an_offloaded_model_is_trained_as_on_one_device(ranks: Any) -> None:
    for rank in ranks:
        assert max(rank["exact"].values()) <= 1e-6, rank["exact"]


def test_training_goes_on_from_a_checkpoint(ranks: Any) -> None:
    """The key's bias has a gradient of rounding noise, which Adam amplifies."""
    for rank in ranks:
        kept = rank["kept"]["apart"]
        judged = {name: gap for name, gap in kept.items() if not name.endswith("key.bias")}
        assert max(judged.values()) <= 1e-6, kept
        assert rank["kept"]["cut"], "nothing was cut"


def test_a_penalty_on_offloaded_shards_is_refused(ranks: Any) -> None:
    """Autograd would add it while the gradient that it meets is on its way from the GPU."""
    for rank in ranks:
        for frozen in (False, True):
            said = rank["said"][f"frozen={frozen}"]
            assert said.startswith("Unsupported: A loss that is taken of parameters too"), said
            assert "weight_decay=" in said


def test_without_a_gpu_a_line_says_that_nothing_is_offloaded(ranks: Any) -> None:
    assert "cpu_offload=True offloads nothing here: there is no GPU" in ranks[0]["said"]["told"]


@pytest.mark.parametrize(
    ("name", "options", "kind", "words"),
    [
        ("mirrored", {}, Unsupported, "taken by: sharded"),
        ("hybrid", {}, Unsupported, "taken by: sharded"),
        ("sharded", {"zero": 1}, ConfigurationError, "zero=1, cpu_offload=True. Use zero=3"),
        ("sharded", {"framework": "tensorflow"}, Unsupported, "It works in: torch"),
    ],
)
def test_it_is_refused_where_it_has_no_meaning(
    name: str, options: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        dream.strategy(name, cpu_offload=True, **options)
