"""`recompute="auto"` under Keras's fit: the numbers are those of keeping all, and less is kept."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launch_scripts import keras_on

SCRIPT = Path(__file__).with_name("keras_auto_recompute.py")
LIMIT = 300
SOME = ("kept", "share")
ALL = (*SOME, "enough", "bytes", "all")
"""On TensorFlow the contract holds `recompute=True`, and torch what other budgets are."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "ways"),
    [
        ("tensorflow", SOME),
        ("torch", ALL),
        pytest.param("tensorflow", ALL, marks=pytest.mark.exhaustive),
    ],
)
def test_what_a_budget_chooses_is_computed_again_exactly(
    backend: str, ways: tuple[str, ...], tmp_path: Path
) -> None:
    """In a graph with paths around layers, over shares of batches that end with an uneven one."""
    done = subprocess.run(
        [sys.executable, "-m", "dream", "run", "-n", "2", str(SCRIPT), *ways],
        cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False,
        env=os.environ | keras_on(backend) | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("found")]
    found = {name: (float(apart), int(calls)) for _, name, apart, calls in lines}
    assert found.keys() == {*ways}, done.stdout
    for name, (apart, _) in found.items():
        assert apart <= 1e-6, (name, apart)
    assert "alive 0" in done.stdout, done.stdout
    assert found["kept"][1] < found[ways[-1]][1]
    assert ("recompute: nothing, activations of" in done.stderr) == ("enough" in ways)
    budgets = len({"share", "bytes"} & {*ways})
    assert len(re.findall(r"recompute: \d.* KB to ", done.stderr)) == budgets
