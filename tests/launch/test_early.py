"""Under `--strategy`, TensorFlow is set up as soon as it is imported, and only where the rank
trains in it. What is then set up is the adapter's to test."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

WATCH = """
import sys
from dream import _registry
_registry.load = lambda place: lambda *given: print("set up", *given)
from dream.launch.early import watch
watch()
"""

NEEDS_BOTH = pytest.mark.skipif(
    not (find_spec("torch") and find_spec("tensorflow")), reason="torch and tensorflow are needed"
)


def told(imports: str, **env: str) -> str:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "1", "TF_ENABLE_ONEDNN_OPTS": "0"}
    ran = subprocess.run(
        [sys.executable, "-c", WATCH + imports],
        env={**os.environ, **quiet, "DREAM_STRATEGY": "mirrored:reduction=grpc", **env},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
@NEEDS_BOTH
@pytest.mark.parametrize(
    ("imports", "env"),
    [
        ("import keras", {"KERAS_BACKEND": "tensorflow"}),
        ("import torch, tensorflow", {"DREAM_FRAMEWORK": "tensorflow"}),
    ],
)
def test_set_up(imports: str, env: dict[str, str]) -> None:
    assert told(imports, **env) == "set up mirrored {'reduction': 'grpc'}\n"


@pytest.mark.slow
@NEEDS_BOTH
def test_not_set_up_where_it_may_be_torch() -> None:
    assert told("import torch, tensorflow") == ""


def test_a_script_without_tensorflow() -> None:
    assert told("import json") == ""
