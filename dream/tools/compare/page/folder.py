"""Where a report goes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile

from dream._errors import ConfigurationError, NotInstalled

_NEEDED = ("matplotlib", "jinja2")


def check(folder: Path) -> None:
    """Refuse what could not be written, before anything is measured."""
    absent = [name for name in _NEEDED if find_spec(name) is None]
    if absent:
        raise NotInstalled(
            f"{' and '.join(absent)} not installed. Needed by: --report {folder}. "
            "Run: pip install 'dream-systems[report]'"
        )
    try:
        _check(folder)
    except OSError as error:  # too long a name, or not ours to look into
        raise ConfigurationError(
            f"No report can be written there. Received: --report {folder} ({error.strerror}). "
            "Name another folder."
        ) from error


def _check(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(
            f"A report is a folder. Received: --report {folder}, a file. Name another one."
        )
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigurationError(
            f"The folder for the report has files in it. Received: --report {folder}. Name one "
            "that is empty or not there yet, or empty this one."
        )
    if not folder.exists() and not folder.absolute().parent.is_dir():
        raise ConfigurationError(
            f"No folder can be made there. Received: --report {folder}. Make "
            f"{folder.absolute().parent} first, or name another one."
        )
    with TemporaryFile(dir=folder if folder.is_dir() else folder.absolute().parent):
        pass  # one can be made
