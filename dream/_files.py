"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from dream._errors import ConfigurationError, DreamError


def is_file(path: Path) -> bool:
    """Whether there is one; False for what could be no path at all, such as too long a name."""
    try:
        return path.is_file()
    except OSError:
        return False


def write_whole(path: Path, fill: Callable[[IO[bytes]], Any]) -> None:
    """What `fill` writes into the open file it is given is at `path` once all of it is there; in
    the file a link leads to. A device or a pipe is written into as it stands."""
    path = path.resolve()
    if _is_special(path):
        with path.open("wb") as file:
            fill(file)
        return
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        fill(file)
    os.replace(part, path)  # noqa: PTH105


def write_json(path: Path, figures: Mapping[str, Any]) -> None:
    """All or nothing. figures: without nan or infinity, which JSON has no words for."""
    text = json.dumps(figures, indent=2, allow_nan=False) + "\n"
    try:
        write_whole(path, lambda file: file.write(text.encode()))
    except OSError as error:
        raise DreamError(
            f"The figures could not be written. Received: {path} ({error.strerror}). Make room, or "
            "name another file."
        ) from error


def check_output(option: str, path: Path | None) -> None:
    """Refuse, before anything runs, a file that cannot be written. option: for the message."""
    if path is None:
        return
    why = _obstacle(path)
    if why is not None:
        raise ConfigurationError(
            f"No file can be written there. Received: {option} {path}{why}. Make its folder "
            "first, or name another file."
        )


def _obstacle(path: Path) -> str | None:
    """For the message; None where the file can be written."""
    try:
        path = path.resolve()
        if path.is_dir():
            return ", a folder"
        if _is_special(path):
            return None if os.access(path, os.W_OK) else ", which cannot be written into"
        if not path.parent.is_dir():
            return ""
        with TemporaryFile(dir=path.parent):
            return None
    except (OSError, RuntimeError) as error:  # too long a name, or links in a circle
        return f" ({getattr(error, 'strerror', error)})"


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()
