"""A Keras optimizer travels to a server as names and numbers, and what comes is no code."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch_scripts import alone, keras_on

from dream.launch.forks.foresight import IMPORTS

SCRIPT = Path(__file__).with_name("keras_server_optimizer.py")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch"])
def test_what_comes_back_is_the_same_and_hostile_descriptions_make_nothing(
    backend: str, tmp_path: Path
) -> None:
    environ = keras_on(backend)
    done = alone([str(SCRIPT), str(tmp_path)], environ[IMPORTS], environ)
    assert done.stdout.endswith("all held\n"), done.stdout + done.stderr
