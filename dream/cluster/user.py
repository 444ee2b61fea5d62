"""What the user's environment says beside places: where caches are, and what a child inherits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def inherited() -> dict[str, str]:
    """This process's environment, to start another program with."""
    return dict(os.environ)


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """DREAM_CACHE, else `dream` in the user's own cache folder."""
    own = environ.get("DREAM_CACHE")
    if own:
        return Path(own).expanduser()
    user = environ.get("XDG_CACHE_HOME")
    return (Path(user) if user else Path.home() / ".cache") / "dream"
