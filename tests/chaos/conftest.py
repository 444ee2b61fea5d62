from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the temporary files of jobs of which each leaves none."""
    return tmp_path_factory.mktemp("temporary")
