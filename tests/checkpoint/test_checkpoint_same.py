"""What goes on in the cell that wrote it is the training that was not stopped, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checkpoint_same
import pytest
from launch_scripts import ON_TORCH

import dream

pytestmark = pytest.mark.slow
TENSOR, PIPELINE = {"split": "tensor"}, {"split": "pipeline"}
CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "mirrored": ("mirrored", {}),
    "local draws": ("mirrored", {"randomness": "local"}),
    "zero 3": ("sharded", {}),
    "pipeline": ("model_parallel", PIPELINE),
    "local_sgd": ("local_sgd", {"every": 3}),
    "zero 1 O2": ("sharded", {"zero": 1, "precision": "O2"}),
}
OUTER: tuple[str, dict[str, Any]] = (
    "local_sgd", {"every": 4, "outer_lr": 0.7, "fragments": 2}
)  # fmt: skip
ZERO_1: tuple[str, dict[str, Any]] = ("sharded", {"zero": 1})
MORE: dict[int, dict[str, tuple[str, dict[str, Any]]]] = {
    1: {"single": ("single", {}), "O2": ("single", {"precision": "O2"}),
        "O3": ("single", {"precision": "O3"}), "float16": ("single", {"precision": "float16"})},
    2: {"tensor": ("model_parallel", TENSOR), "zero 2": ("sharded", {"zero": 2}),
        "zero 3 O2": ("sharded", {"precision": "O2"}),
        "pipeline O2": ("model_parallel", {**PIPELINE, "precision": "O2"}),
        "1f1b": ("model_parallel", {**PIPELINE, "schedule": "1f1b"}),
        "zero 1": ZERO_1, "outer": OUTER, "O2": ("mirrored", {"precision": "O2"})},
    3: {"zero 1": ZERO_1, **{name: CELLS[name] for name in
                             ("mirrored", "zero 3", "pipeline", "local_sgd")}},
    4: {"hybrid": ("hybrid", {"data": 2, "model": 2, **PIPELINE}),
        "hybrid tensor": ("hybrid", {"data": 2, "model": 2, **TENSOR}),
        "zero 1 twice": ("sharded", {"zero": 1, "data": 2}),
        "zero 3 twice": ("sharded", {"data": 2}), "outer": OUTER},
}  # fmt: skip


def same(folder: Path, cells: dict[str, tuple[str, dict[str, Any]]], ranks: int) -> dict[str, Any]:
    found = dream.launch(
        checkpoint_same.gone_on, str(folder), [*cells.values()], n=ranks, **ON_TORCH
    )  # fmt: skip
    for rank in found:
        for name, told in zip(cells, rank, strict=True):
            assert told["arrays"] == 6, name
            assert not told["other"], name
    return dict(zip(cells, found[0], strict=True))


def test_a_training_goes_on_to_the_bit(tmp_path: Path) -> None:
    told = same(tmp_path, CELLS, 2)
    assert "model-00002-of-00002.safetensors" in told["pipeline"]["files"]  # a rank, its stage
    assert "replicas-00002-of-00002.safetensors" in told["local_sgd"]["files"]
    assert not any("replicas" in name for name in told["mirrored"]["files"])


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", MORE)
def test_so_do_all_others(ranks: int, tmp_path: Path) -> None:
    same(tmp_path, MORE[ranks], ranks)


def test_workers_in_step_go_on_to_the_bit(tmp_path: Path) -> None:
    """In the midst of a pass, whose batches servers deal; without dropout, which each draws."""
    options = {"staleness": 0}
    whole, then = (
        dream.launch(
            checkpoint_same.one, str(tmp_path), "parameter_server", options, first, n=3,
            **ON_TORCH
        )[0]
        for first in (0, checkpoint_same.SAVED)
    )  # fmt: skip
    for name, value in whole.items():
        assert (value == then[name]).all(), name


def test_workers_out_of_step_are_refused(tmp_path: Path) -> None:
    for options, words in (
        ({"staleness": 1, "workers": 2}, ["at no one step"] * 2),
        ({"staleness": 1, "workers": 1}, ["strategy.load"]),
    ):
        ranks = 1 + int(options["workers"])
        said = dream.launch(checkpoint_same.refused, str(tmp_path), options, n=ranks, **ON_TORCH)[0]
        assert len(said) == len(words), said
        assert all(word in told for word, told in zip(words, said, strict=True)), said


@pytest.mark.parametrize("cell", [CELLS["local_sgd"], OUTER], ids=["local_sgd", "outer"])
def test_others_read_of_replicas_what_they_come_together_to(
    cell: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    """An outer step and all, though saving brings none of them together."""
    gaps = dream.launch(checkpoint_same.come_together, str(tmp_path), cell[1], n=2, **ON_TORCH)
    assert max(gaps) < 1e-7


def test_replicas_that_come_together_otherwise_are_refused(tmp_path: Path) -> None:
    for said in dream.launch(checkpoint_same.another, str(tmp_path), n=2, **ON_TORCH):
        assert len(said) == 2
        assert "'every': 3, 'outer_lr': None} in it, {'every': 2," in said[0]
        assert "'outer_lr': 0.7" in said[1]
