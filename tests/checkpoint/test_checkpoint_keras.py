"""A fit that ends in mid-epoch goes on under another strategy and number of ranks."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from launch_scripts import keras_on

import dream

pytestmark = pytest.mark.slow
EXHAUSTIVE = pytest.mark.exhaustive
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}


class Cell(NamedTuple):
    backend: str
    word: str
    ranks: int = 1
    options: tuple[tuple[str, Any], ...] = ()


def run(cell: Cell, folder: Path, what: str = "train", **more: Any) -> list[dict[str, Any]]:
    options = dict(cell.options)
    given = ",".join(f"{name}={value}" for name, value in options.items())
    found: list[dict[str, Any]] = dream.launch(
        by_name, what, cell.word, options, str(folder), more, n=cell.ranks,
        framework=cell.backend, strategy=f"{cell.word}:{given}" if given else cell.word,
        timeout=300, env={**keras_on(cell.backend), **QUIET},
    )  # fmt: skip
    return found


def by_name(name: str, word: str, options: Any, folder: str, more: dict[str, Any]) -> Any:
    import checkpoint_keras
    import keras  # noqa: F401  (first, so that `--strategy` finds the backend before any op)

    return getattr(checkpoint_keras, name)(word, options, folder, **more)


@cache
def whole(backend: str, folder: Path) -> dict[str, Any]:
    return run(Cell(backend, "single"), folder / f"whole-{backend}")[0]


@cache
def alike(backend: str, folder: Path) -> tuple[dict[str, Any], float]:
    """What one device learns where all can learn the same; and how far from that another may be:
    three times as far as it is from itself where it sums each batch in two parts."""
    trainings = {"one": ({}, ALIKE), "parted": ({"accumulate": 2}, ALIKE)}
    told = run(Cell(backend, "single"), folder / f"alike-{backend}", "several",
               trainings=trainings)[0]  # fmt: skip
    pairs = zip(told["one"]["weights"], told["parted"]["weights"], strict=True)
    return told["one"], max(1e-6, 3 * max(float(np.abs(a - b).max()) for a, b in pairs))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fits")


TF, TORCH = "tensorflow", "torch"
ALIKE: dict[str, Any] = {"rate": 0.0, "shuffle": False}
TENSOR, PIPELINE = (("split", "tensor"),), (("split", "pipeline"),)
DROPOUT = [
    pytest.param((Cell(TF, "mirrored", 2), Cell(TF, "single")), id="tf"),
    pytest.param((Cell(TORCH, "single"), Cell(TORCH, "mirrored", 2)), id="torch", marks=EXHAUSTIVE),
    pytest.param(
        (Cell(TORCH, "horovod", 3), Cell(TORCH, "mirrored", 2), Cell(TORCH, "single")),
        id="torch-ring", marks=EXHAUSTIVE,
    ),
    pytest.param(
        (Cell(TF, "horovod", 3), Cell(TF, "mirrored", 1, (("devices", 2),)), Cell(TF, "single")),
        id="tf-ring", marks=EXHAUSTIVE,
    ),
]  # fmt: skip
WITHOUT = [
    pytest.param((Cell(TF, "sharded", 2), Cell(TF, "model_parallel", 2, PIPELINE)), id="parts"),
    pytest.param(
        (Cell(TF, "model_parallel", 2, PIPELINE), Cell(TF, "data_parallel", 1, (("devices", 2),)),
         Cell(TF, "model_parallel", 2, TENSOR)), id="more-parts", marks=EXHAUSTIVE,
    ),
    pytest.param(
        (Cell(TORCH, "mirrored", 2), Cell(TF, "sharded", 2), Cell(TORCH, "single")),
        id="backends", marks=EXHAUSTIVE,
    ),
]  # fmt: skip


@pytest.mark.parametrize("cells", DROPOUT)
def test_a_fit_goes_on_elsewhere(cells: tuple[Cell, ...], place: Path, tmp_path: Path) -> None:
    """Saved every 3 of 12 steps, 4 to an epoch; ended after 5, then after 2 more. With dropout,
    shuffled data, AdamW, and a callback that lowers the learning rate."""
    one = whole(cells[0].backend, place)
    for rank in travelled(cells, tmp_path / "runs"):
        same(rank, one, 1e-6)


@pytest.mark.parametrize("cells", WITHOUT)
def test_models_in_parts_go_on_elsewhere(
    cells: tuple[Cell, ...], place: Path, tmp_path: Path
) -> None:
    """Without dropout, which DTensor draws in its own way, and each backend by its own numbers."""
    one, _ = alike(cells[-1].backend, place)
    most = max(alike(cell.backend, place)[1] for cell in cells)
    for rank in travelled(cells, tmp_path / "runs", **ALIKE):
        same(rank, one, most)


ALONE, OUTER = (("every", 3),), (("every", 4), ("outer_lr", 0.7), ("fragments", 2))


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(Cell(TORCH, "local_sgd", 2, ALONE), id="torch"),
        pytest.param(Cell(TORCH, "local_sgd", 2, OUTER), id="torch-outer", marks=EXHAUSTIVE),
        pytest.param(Cell(TF, "local_sgd", 2, ALONE), id="tf", marks=EXHAUSTIVE),
        pytest.param(Cell(TF, "local_sgd", 3, OUTER), id="tf-outer", marks=EXHAUSTIVE),
    ],
)
def test_replicas_that_step_alone_go_on_to_the_bit(cell: Cell, tmp_path: Path) -> None:
    """From the end of an epoch, though the fit ended in the midst of the next; each with the masks
    that it would have drawn, and its own states where those are apart."""
    options, every = dict(cell.options), {"every": "epoch"}
    trainings = {"whole": (options, every), "left": (options, {**every, "end": 6})}
    one = run(cell, tmp_path, "several", trainings=trainings)
    on = run(cell, tmp_path / "left", every="epoch", seen=1)
    for found, told in zip(on, one, strict=True):
        same(found, told["whole"], 0.0)
        assert found["history"]["epoch"] == [0, 1, 2]


def travelled(cells: tuple[Cell, ...], folder: Path, **more: Any) -> list[dict[str, Any]]:
    ends = (5, 2, -1) if len(cells) == 3 else (5, -1)
    found: list[dict[str, Any]] = []
    for seen, (cell, end) in enumerate(zip(cells, ends, strict=True)):
        found = run(cell, folder, end=end, seen=seen, **more)
    return found


def same(found: dict[str, Any], one: dict[str, Any], bound: float) -> None:
    for key in ("weights", "optimizer"):
        for ours, theirs in zip(found[key], one[key], strict=True):
            assert np.abs(ours - theirs).max() <= bound, key
    assert found["history"].keys() == one["history"].keys()
    for name, figures in one["history"].items():
        np.testing.assert_allclose(found["history"][name], figures, atol=2 * bound, err_msg=name)


@pytest.mark.parametrize("backend", [TF, TORCH])
def test_on_the_same_cell_not_a_bit_differs(backend: str, place: Path, tmp_path: Path) -> None:
    cell = Cell(backend, "single")
    run(cell, tmp_path / "runs", end=5, seen=1)
    same(run(cell, tmp_path / "runs")[0], whole(backend, place), 0.0)


SAID = {
    "model": r"'dense/kernel' of shape \(8, 16\) in it, \(8, 17\) here",
    "batch": r"Batches of another size|Other data was trained on before",
    "length": r"Other data was trained on before.*samples=50 here, samples=61 in the state",
    "generator": r"no other process finds again|cannot be kept",
    "outside": r"made outside of a block",
    "saved": r"does not contain the position of a fit",
    "best": r"restore_best_weights=True",
    "two": r"BackupAndRestore beside",
    "several": r"several models cannot go on in one folder",
    "every": r"every=0",
    "keep": r"keep=0",
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("refused")
    told: dict[str, str] = run(Cell(TORCH, "single"), folder, "refused")[0]
    return told


@pytest.mark.parametrize("case", SAID)
def test_what_cannot_go_on_is_refused(case: str, refusals: dict[str, str]) -> None:
    assert re.search(SAID[case], refusals[case]), refusals[case]
    assert not refusals[case].startswith("changed")


def test_a_script_of_two_fits_is_gone_through_again(tmp_path: Path) -> None:
    """Nothing is trained twice, and the weights are those of the end."""
    found = run(Cell(TORCH, "single"), tmp_path / "runs", "again")[0]
    first, second = found["weights"]
    for ours, theirs in zip(first, second, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert (found["steps"], found["epochs"]) == (12, [0, 1])
