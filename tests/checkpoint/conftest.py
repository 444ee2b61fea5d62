"""What one training that nobody disturbs ends with, for all that disturb it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from going_on_scripts import SCRIPT
from launch_scripts import alone


@pytest.fixture(scope="session")
def torch_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("going_on") / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="session")
def undisturbed(torch_script: Path) -> dict[str, Any]:
    """On one device."""
    out = torch_script.with_name("undisturbed.json")
    ran = alone([str(torch_script), "single", str(out), "0"], "torch")
    assert ran.returncode == 0, ran.stderr
    told: dict[str, Any] = json.loads(out.read_text())
    return told
