"""Private names of keras.callbacks.BackupAndRestore. Read off Keras 3.15; held by
tests/adapters/keras/test_private_names.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MethodType
from typing import Any

from dream.files.whole import write_whole

_KEY = "dream"


def keep_with(backup: Any, state: Callable[[], Mapping[str, Any] | None], fit_epoch: str) -> None:
    """Have the callback keep `state()` with the weights, and its epoch as the one to go on in.
    Keras keeps the batch too, but begins the epoch again."""

    def save(self: Any) -> None:
        type(self)._save_model(self)
        place, kept = Path(self._training_metadata_path), state()
        if kept is None:
            return
        said = json.loads(place.read_text(encoding="utf-8"))
        text = json.dumps({**said, "epoch": kept[fit_epoch], _KEY: dict(kept)})
        write_whole(place, lambda file: file.write(text.encode()))

    backup._save_model = MethodType(save, backup)


def kept(backup: Any) -> dict[str, Any] | None:
    """What was kept with the weights that the callback has loaded; None for nothing."""
    place = Path(backup._training_metadata_path)
    if not place.exists():
        return None
    said: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return said.get(_KEY)
