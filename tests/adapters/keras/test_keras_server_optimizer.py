"""A Keras optimizer travels to a server as names and numbers, and what comes is no code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("keras_server_optimizer.py")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch"])
def test_what_comes_back_is_the_same_and_hostile_descriptions_make_nothing(
    backend: str, tmp_path: Path
) -> None:
    environ = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)],
        env=environ, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.stdout.endswith("all held\n"), done.stdout + done.stderr
