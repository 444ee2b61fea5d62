"""The notebook for teachers runs from top to bottom, and is kept without its outputs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "teaching.ipynb"
CODE = [
    cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"
]  # fmt: skip
ENVIRON = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}


def test_it_is_kept_without_outputs() -> None:
    assert len(CODE) > 5
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in CODE)


@pytest.mark.exhaustive
def test_its_cells_are_a_script(tmp_path: Path) -> None:
    script = tmp_path / "cells.py"
    script.write_text("\n\n".join("".join(cell["source"]) for cell in CODE))
    done = subprocess.run(
        [sys.executable, str(script)], env=ENVIRON, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "the weights of two replicas differ" in done.stdout


@pytest.mark.exhaustive
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("nbconvert", "ipykernel"))),
    reason="pip install nbconvert ipykernel",
)
def test_it_runs_as_a_notebook(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", str(NOTEBOOK),
         "--output-dir", str(tmp_path)],
        env=os.environ, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "image/png" in (tmp_path / NOTEBOOK.name).read_text()
