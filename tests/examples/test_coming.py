"""Both columns of tf.distribute and of keras.distribution on docs/coming.md, on CPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.exhaustive
SCRIPT = Path(__file__).with_name("coming_columns.py")


@cache
def column(name: str) -> dict[str, Any]:
    env = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), name], env=os.environ | env,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def apart(ours: list[list[float]], theirs: list[list[float]]) -> float:
    pairs = zip(ours, theirs, strict=True)
    return max(float(np.abs(np.subtract(a, b)).max()) for a, b in pairs)


def test_mirrored_strategy_and_mirrored() -> None:
    theirs, ours, plain = column("tf_distribute"), column("by_dream"), column("plain")["fit"]
    for row in ("fit", "loop", "one device"):
        assert apart(theirs[row], plain) <= 1e-6, row
        assert apart(ours[row], plain) <= 1e-6, row
    assert theirs["replicas"] == ours["replicas"] == 2
    assert theirs["loss"] == pytest.approx(ours["loss"], abs=1e-6)
    assert theirs["central"]


def test_keras_distribution_trains_on_one_device_of_tensorflow() -> None:
    theirs, plain = column("keras_distribution"), column("plain")["fit"]
    for row in ("data", "model"):
        assert theirs[f"{row} held"] == ["ResourceVariable", 8, 16, "CPU:0"]
        assert apart(theirs[row], plain) <= 1e-6


def test_what_stands_for_keras_distribution() -> None:
    plain = column("plain")["fit"]
    assert apart(column("dream_distribution")["data"], plain) <= 1e-6
    assert apart(column("dream_model_parallel")["model"], plain) <= 1e-6
