"""Any to any: who writes a checkpoint, and who goes on from it, may be of another strategy, number
of ranks and framework.

DREAM_CHECKPOINT_CELLS=FILE has the largest difference of each pair written down, a JSON line each;
`python tests/checkpoint/checkpoint_table.py FILE` makes the table of docs/checkpoints.md of them.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from launch_scripts import keras_on

import dream

pytestmark = pytest.mark.slow
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}


class Cell(NamedTuple):
    api: str
    backend: str
    word: str
    ranks: int = 1
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        api = "torch" if self.api == "torch" else f"keras-{self.backend}"
        options = dict(self.options)
        word = f"{self.word}{options['zero']}" if "zero" in options else self.word
        if self.word == "model_parallel":
            word = options["split"]
        return f"{api}-{word}-{self.ranks}"


def cells(api: str, backend: str, *given: tuple[Any, ...]) -> dict[str, Cell]:
    made = [Cell(api, backend, *each) for each in given]
    return {str(cell): cell for cell in made}


DEVICES, TENSOR, PIPELINE = ((("devices", 2),), (("split", "tensor"),), (("split", "pipeline"),))
ZERO1, ZERO2, LAYERS = ((("zero", 1),), (("zero", 2),), (("split", "layers"), ("devices", 2)))
BOTH = (("data", 2), ("model", 2), ("split", "pipeline"))
ALONE = (("every", 1),)
"""Averaged at every step, which is what `mirrored` does."""
EVERYWHERE = [("single",), ("mirrored", 2), ("mirrored", 3), ("mirrored", 4), ("horovod", 2)]
CELLS = {
    **cells("torch", "torch", *EVERYWHERE, ("sharded", 2), ("data_parallel", 1, DEVICES),
            ("model_parallel", 2, TENSOR), ("sharded", 2, ZERO1), ("sharded", 3, ZERO1),
            ("sharded", 4, ZERO2), ("model_parallel", 2, PIPELINE), ("hybrid", 4, BOTH),
            ("model_parallel", 1, LAYERS), ("model_parallel", 3, PIPELINE), ("sharded", 3),
            ("local_sgd", 2, ALONE), ("local_sgd", 3, ALONE)),
    **cells("keras", "torch", *EVERYWHERE),
    **cells("keras", "tensorflow", *EVERYWHERE, ("sharded", 2), ("data_parallel", 1, DEVICES),
            ("model_parallel", 2, TENSOR), ("model_parallel", 2, PIPELINE)),
}  # fmt: skip
SAMPLE = {
    "torch-mirrored-2": ("keras-tensorflow-mirrored-2",),
    "torch-pipeline-2": ("torch-sharded1-2",),
    "keras-tensorflow-sharded-2": ("torch-sharded-2",),
}
"""By reader, whose checkpoints it goes on from. Keras on torch goes on in test_checkpoint_keras,
and what torch reads of it is in test_checkpoint_layers; what others read of `local_sgd` is in
test_checkpoint_same."""


def run(cell: Cell, name: str, *args: Any) -> list[Any]:
    given = ",".join(f"{key}={value}" for key, value in cell.options)
    env = keras_on(cell.backend) if cell.api == "keras" else {}
    found: list[Any] = dream.launch(
        by_name, cell.api, name, (cell.word, dict(cell.options), *args), n=cell.ranks,
        framework=cell.backend, strategy=f"{cell.word}:{given}" if given else cell.word,
        timeout=300, env={**env, **QUIET},
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
def plain() -> tuple[list[list[Any]], list[float]]:
    """What one device learns in torch without dream, by optimizer; and how far from it another
    may be: three times as far as it is from itself where it sums a batch in parts."""
    found, noise = run(CELLS["torch-single-1"], "plain")[0]
    return found, [max(1e-6, 3 * each) for each in noise]


@cache
def undisturbed(family: str) -> list[list[Any]]:
    """What one device learns in one go, by framework."""
    if family == "torch":
        return plain()[0]
    found: list[list[Any]] = run(CELLS[f"{family}-single-1"], "whole")[0]
    return found


def family_of(name: str) -> str:
    """Return `torch`, `keras-tensorflow` or `keras-torch`."""
    return "torch" if CELLS[name].api == "torch" else f"keras-{CELLS[name].backend}"


def most(writer: str, reader: str) -> list[float]:
    """How far from the reader's framework's own run it may be: of another framework's first half
    also as far as the two are apart without any checkpoint."""
    mine, theirs = undisturbed(family_of(reader)), undisturbed(family_of(writer))
    apart = [largest(*pair) for pair in zip(mine, theirs, strict=True)]
    return [bound + gap for bound, gap in zip(plain()[1], apart, strict=True)]


def gone_on(reader: str, writers: tuple[str, ...], place: Path) -> None:
    folders = [written(name, place) for name in writers]
    expected = undisturbed(family_of(reader))
    for rank in run(CELLS[reader], "read", folders):
        for writer, by_kind in zip(writers, rank, strict=True):
            gaps = [largest(*pair) for pair in zip(by_kind, expected, strict=True)]
            bounds = most(writer, reader)
            note(writer, reader, gaps, bounds)
            assert all(gap < bound for gap, bound in zip(gaps, bounds, strict=True)), (writer, gaps)


def largest(found: list[Any], expected: list[Any]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True))


def note(writer: str, reader: str, gaps: list[float], bounds: list[float]) -> None:
    if file := os.environ.get("DREAM_CHECKPOINT_CELLS"):
        told = {"writer": writer, "reader": reader, "gaps": gaps, "bounds": bounds}
        with Path(file).open("a") as lines:
            lines.write(json.dumps(told) + "\n")


@pytest.mark.parametrize("reader", SAMPLE)
def test_a_training_goes_on_from(reader: str, place: Path) -> None:
    """SGD with momentum, and AdamW: as one device learns in torch, in one go."""
    gone_on(reader, SAMPLE[reader], place)


@pytest.mark.exhaustive
@pytest.mark.parametrize("reader", CELLS)
def test_a_training_goes_on_from_all_others(reader: str, place: Path) -> None:
    gone_on(reader, tuple(CELLS), place)


def test_servers_go_on_from_ranks_and_they_from_servers(place: Path) -> None:
    """2 workers and a server, in step; the optimizer's states are the server's."""
    servers = Cell("torch", "torch", "parameter_server", 3, (("staleness", 0),))
    ranks, told = str(place / "ranks"), str(place / "told")
    run(Cell("torch", "torch", "mirrored", 2), "one", "", ranks)
    run(servers, "one", "", told)
    expected, bounds = plain()
    for cell, folder in ((servers, ranks), (CELLS["torch-sharded1-2"], told)):
        found = run(cell, "one", folder, "")[0]
        assert largest(found, expected[1]) < bounds[1]
