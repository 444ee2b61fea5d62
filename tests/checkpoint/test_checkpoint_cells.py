"""Any to any: who writes a checkpoint, and who goes on from it, may be of another strategy, number
of ranks and framework."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import dream

pytestmark = pytest.mark.slow
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}


BOUNDS = (1e-6, 3e-6)
"""SGD's and AdamW's, which Keras computes in another order of operations than torch."""


class Cell(NamedTuple):
    api: str
    backend: str
    word: str
    ranks: int = 1
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        api = "torch" if self.api == "torch" else f"keras-{self.backend}"
        word = dict(self.options).get("split", self.word)
        return f"{api}-{word}-{self.ranks}"


def cells(api: str, backend: str, *given: tuple[Any, ...]) -> dict[str, Cell]:
    made = [Cell(api, backend, *each) for each in given]
    return {str(cell): cell for cell in made}


DEVICES, TENSOR, PIPELINE = ((("devices", 2),), (("split", "tensor"),), (("split", "pipeline"),))
EVERYWHERE = [("single",), ("mirrored", 2), ("mirrored", 3), ("horovod", 2)]
CELLS = {
    **cells("torch", "torch", *EVERYWHERE, ("sharded", 2), ("data_parallel", 1, DEVICES),
            ("model_parallel", 2, TENSOR)),
    **cells("keras", "torch", *EVERYWHERE),
    **cells("keras", "tensorflow", *EVERYWHERE, ("sharded", 2), ("data_parallel", 1, DEVICES),
            ("model_parallel", 2, TENSOR), ("model_parallel", 2, PIPELINE)),
}  # fmt: skip
SAMPLE = {
    "torch-mirrored-2": ("keras-tensorflow-pipeline-2", "keras-torch-mirrored-2"),
    "keras-torch-mirrored-2": ("torch-sharded-2", "torch-mirrored-2"),
    "keras-tensorflow-sharded-2": ("torch-sharded-2", "keras-tensorflow-pipeline-2"),
}
"""By reader, whose checkpoints it goes on from."""


def run(cell: Cell, name: str, *args: Any) -> list[Any]:
    given = ",".join(f"{key}={value}" for key, value in cell.options)
    found: list[Any] = dream.launch(
        by_name, cell.api, name, (cell.word, dict(cell.options), *args), n=cell.ranks,
        framework=cell.backend, strategy=f"{cell.word}:{given}" if given else cell.word,
        timeout=300, env={"KERAS_BACKEND": cell.backend, **QUIET},
    )  # fmt: skip
    return found


def by_name(api: str, name: str, args: tuple[Any, ...]) -> Any:
    if api == "keras":
        import keras  # noqa: F401  (first, so that `--strategy` finds the backend before any op)

    import checkpoint_cells

    return getattr(checkpoint_cells, name)(api, *args)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cells")


@cache
def written(name: str, place: Path) -> str:
    run(CELLS[name], "write", str(place / name))
    return str(place / name)


@cache
def plain() -> list[list[Any]]:
    found: list[list[Any]] = run(CELLS["torch-single-1"], "plain")[0]
    return found


def gone_on(reader: str, writers: tuple[str, ...], place: Path) -> None:
    folders = [written(name, place) for name in writers]
    for rank in run(CELLS[reader], "read", folders):
        for writer, by_kind in zip(writers, rank, strict=True):
            for found, expected, bound in zip(by_kind, plain(), BOUNDS, strict=True):
                for ours, theirs in zip(found, expected, strict=True):
                    assert np.abs(ours - theirs).max() < bound, writer


@pytest.mark.parametrize("reader", SAMPLE)
def test_a_training_goes_on_from(reader: str, place: Path) -> None:
    """SGD with momentum, and AdamW: as one device learns in torch, in one go."""
    gone_on(reader, SAMPLE[reader], place)


@pytest.mark.exhaustive
@pytest.mark.parametrize("reader", CELLS)
def test_a_training_goes_on_from_all_others(reader: str, place: Path) -> None:
    gone_on(reader, tuple(CELLS), place)
