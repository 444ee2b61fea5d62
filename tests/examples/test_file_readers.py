"""Tar shards and Parquet files: each sample once an epoch, also where other ranks go on in it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dream

pytestmark = pytest.mark.exhaustive
EXAMPLE = Path(__file__).parents[2] / "examples" / "files.py"
ROWS, BATCH, LEFT = 1000, 50, 7
KINDS = [
    pytest.param(kind, marks=pytest.mark.skipif(
        importlib.util.find_spec(library) is None, reason=f"pip install {library}"
    ))
    for kind, library in (("tar", "webdataset"), ("parquet", "pyarrow"))
]  # fmt: skip


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("files", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def taken(kind: str, folder: Path, state: Any, most: int) -> tuple[list[float], Any, set[str]]:
    """Take batches, from where the state stands. Return the first number of each sample that all
    ranks saw, where that has come to, and the files that this rank read."""
    from torch.utils.data import DataLoader

    read = set()

    def note(event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and str(given[0]).startswith(str(folder)):
            read.add(str(given[0]))

    sys.addaudithook(note)
    seen: list[float] = []
    with dream.strategy("mirrored", framework="torch", input="sharded") as strategy:
        batches: Any = DataLoader(example().KINDS[kind][1](folder), batch_size=BATCH)
        if state is not None:
            batches.load_state_dict(state)
        for at, (x, _) in enumerate(batches):
            every = strategy.communicator.all_gather_object(x[:, 0].tolist())
            seen += [number for rank in every for number in rank]
            if at + 1 == most:
                break
        return seen, batches.state_dict(), read


@pytest.mark.parametrize("kind", KINDS)
def test_each_sample_comes_once_where_other_ranks_go_on(kind: str, tmp_path: Path) -> None:
    module = example()
    module.KINDS[kind][0](tmp_path)
    first = dream.launch(
        partial(taken, kind, tmp_path, None, LEFT), n=2, framework="torch", timeout=300
    )
    seen, state, _ = first[0]
    rest = dream.launch(
        partial(taken, kind, tmp_path, state, -1), n=3, framework="torch", timeout=300
    )
    assert len(seen) == BATCH * LEFT
    assert sorted(seen + rest[0][0]) == sorted(module.rows()[0][:, 0].tolist())
    if kind == "tar":  # pyarrow opens files outside of Python
        files = [read for _, _, read in first]
        assert len(files[0] & files[1]) <= 2  # of another's, only to see that they are divided
        assert len(files[0] | files[1]) == module.FILES


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_ranks_prints_what_one_prints(kind: str) -> None:
    told = []
    for ranks in ("1", "2", "3"):
        done = subprocess.run(
            [sys.executable, "-m", "dream", "run", "-n", ranks, str(EXAMPLE), "--kind", kind],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        told.append(re.findall(r"epoch \d: loss \d\.\d{4} over 20 batches", done.stdout))
    assert told[0] == told[1] == told[2]
    assert len(told[0]) == 3
