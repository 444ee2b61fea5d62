"""The files that the command line names."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from dream._errors import ConfigurationError
from dream.tools.port_check.probe import Array


def batch(path: Path) -> dict[str, Array]:
    """The arrays of a .npz file."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, TypeError, AttributeError, BadZipFile) as error:
        raise ConfigurationError(
            f"A batch is a .npz file of arrays. Received: --batch {path} ({error}). Write one with "
            "numpy.savez(path, x=..., y=...)."
        ) from error


def mapping(path: Path | None) -> dict[str, str] | None:
    """The names of a JSON file."""
    if path is None:
        return None
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise _bad_map(path, str(error)) from error
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise _bad_map(path, "not an object of strings")
    return found


def _bad_map(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"A map is a JSON file. Received: --map {path} ({why}). Write "
        '{"old name": "new name", ...} into it.'
    )
