"""TensorFlow's own op for shared memory, and what does without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("tf_shared.py")
RUN = [sys.executable, "-m", "dream", "run", "-n", "2", "--framework", "tensorflow", str(SCRIPT)]


def run(**environ: str) -> str:
    done = subprocess.run(
        RUN, env=os.environ | environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_without_a_compiler_it_goes_through_numpy_and_says_so(tmp_path: Path) -> None:
    said = run(PATH=str(tmp_path), DREAM_CACHE=str(tmp_path))
    assert "op: False" in said
    assert "its op does not compile here" in said
    assert "Install a C++ compiler" in said


@pytest.mark.exhaustive
def test_the_op_is_compiled_once(tmp_path: Path) -> None:
    times = []
    for _ in range(2):
        assert "op: True" in run(DREAM_CACHE=str(tmp_path))
        (built,) = (tmp_path / "ops").glob("*.so")
        times.append(built.stat().st_mtime_ns)
    assert times[0] == times[1]
