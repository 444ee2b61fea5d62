"""TensorFlow takes SIGTERM for itself when a cluster comes up; the script's handler stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, sys, time

def save(*_):
    print("saved", flush=True)
    os._exit(0)

signal.signal(signal.SIGTERM, save)
import tensorflow
import dream

with dream.strategy("mirrored", reduction="grpc", framework="tensorflow"):
    open(sys.argv[1] + os.environ["RANK"], "w").close()
    while True:
        time.sleep(0.1)
"""


@pytest.mark.slow
def test_a_script_saves_what_it_has(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "dream", "run", "-n", "2", "--grace", "60", "--all-output"]
    with subprocess.Popen(
        [*command, str(script), str(tmp_path / "ready")],
        stdout=subprocess.PIPE, text=True, env=os.environ,
    ) as job:  # fmt: skip
        while job.poll() is None and not all((tmp_path / f"ready{r}").exists() for r in (0, 1)):
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        out, _ = job.communicate(timeout=300)
    assert job.returncode == 143
    assert sorted(line for line in out.splitlines() if "saved" in line) == [
        "[0] saved",
        "[1] saved",
    ]
