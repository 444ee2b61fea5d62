"""Kernels, statistics and what lies behind a flattened map are laid out as each framework has
them."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch_scripts import keras_on

import dream

pytestmark = pytest.mark.slow


def by_name(folder: str) -> dict[str, list[float]]:
    import checkpoint_layers
    import keras  # noqa: F401  (first, as a script has it)

    return checkpoint_layers.ported(folder)


def test_torchs_layers_are_keras_and_back(tmp_path: Path) -> None:
    env = {**keras_on("torch"), "TF_CPP_MIN_LOG_LEVEL": "3"}
    found = dream.launch(by_name, str(tmp_path), n=1, framework="torch", timeout=300, env=env)[0]
    for name, gaps in found.items():
        assert max(gaps) < 1e-5, (name, gaps)
