"""Pipelines: schedules, where stages are cut, what each rank holds, and what is refused."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dream.pipeline.division import balanced, microbatches

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("pipeline_ranks.py")
Found = list[dict[str, Any]]


def _run(ranks: int, folder: Path) -> Found:
    command = [str(Path(sys.executable).with_name("dream")), "run", "-n", str(ranks)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*command, str(SCRIPT), str(folder)], env=environment, check=True, timeout=600)
    return [pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return _run(2, tmp_path_factory.mktemp("two"))


@pytest.mark.exhaustive
def test_four_ranks_equal_one_device(tmp_path: Path) -> None:
    for rank in _run(4, tmp_path):
        assert len(rank["exact"]) == 6
        assert not any(rank["exact"].values()), rank["exact"]


def test_every_schedule_equals_one_device(two: Found) -> None:
    for rank in two:
        assert len(rank["exact"]) == 10
        assert not any(rank["exact"].values()), rank["exact"]


def test_numbers_and_frozen_layers_may_change_between_steps(two: Found) -> None:
    for rank in two:
        assert rank["numbers_between_layers"]["heat"] < 1e-6
        assert rank["numbers_between_layers"]["frozen"] < 1e-6


def test_a_rank_holds_its_stage_alone(two: Found) -> None:
    for rank in two:
        bytes_ = rank["memory"]
        assert bytes_["kept"] == pytest.approx(bytes_["built"] / 2, rel=0.01)
        assert bytes_["own"] < 0.55 * bytes_["whole"]
        assert bytes_["groups"] == [8]


def test_stages_are_even_in_parameters_or_in_time(two: Found) -> None:
    assert [rank["balance"]["parameters"] for rank in two] == [[0, 1], [2, 3, 4]]
    assert [rank["balance"]["time"] for rank in two] == [[0, 1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("name", "ConfigurationError", ("'layer3'", "stages=")),
        ("order", "ConfigurationError", ("['0']", "first layer of the second stage")),
        ("count", "ConfigurationError", ("3 stages", "2 ranks")),
        ("looped", "ConfigurationError", ("'interleaved'", "2 stages")),
        ("few", "ConfigurationError", ("microbatches=1", "2 stages", "gpipe")),
        ("many", "ConfigurationError", ("8 samples", "microbatches=9")),
        ("timed", "ConfigurationError", ("balance='time'", "prepare(model, optimizer, data)")),
        ("branches", "Unsupported", ("Branches", "layer of its own", "mirrored")),
        ("noisy", "Unsupported", ("Noisy", "random")),
        ("one", "Unsupported", ("2 stages", "layers 0", "mirrored")),
        ("search", "Unsupported", ("LBFGS", "mirrored")),
        ("loss", "Unsupported", ("Learned", "mirrored")),
        ("meta", "Unsupported", ("Sequential", "sharded")),
        ("rows", "ConfigurationError", ("[4, 8]", "dim 0")),
    ],
)
def test_what_cannot_be_is_refused_on_every_rank(
    two: Found, what: str, kind: str, words: tuple[str, ...]
) -> None:
    for rank in two:
        raised, message = rank["refusals"][what]
        assert raised == kind, message
        assert "Received" in message
        assert all(word in message for word in words), message


def test_the_mesh_is_told_as_an_equation(two: Found) -> None:
    _, message = two[0]["refusals"]["mesh"]
    assert "data 2 x model 2 = 4, replicas 2" in message


def test_runs_of_layers_are_even() -> None:
    assert balanced([1, 1, 1, 9, 1, 1], 3, range(6)) == (3, 4)
    assert balanced([4, 0, 4, 0], 2, [1, 2, 3]) == (1,)
    assert balanced([4, 0, 4, 0], 2, [3]) == (3,)
    assert balanced([1, 1], 3, [1]) is None


def test_microbatches_cover_a_batch_once() -> None:
    for samples in range(1, 40):
        for wanted in (1, 2, 4, 7):
            parts = microbatches(samples, wanted, lambda count: count >= 2)
            spans = [parts.span(index) for index in range(parts.count)]
            covered = [index for first, stop in spans for index in range(first, stop)]
            assert covered == list(range(samples))
            assert 2 <= parts.count <= max(2, min(wanted, samples))
