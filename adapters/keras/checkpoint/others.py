"""What fit's other callbacks have come to: counts and bests, with which they go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, final

import keras

from dream._errors import ConfigurationError, Unsupported
from dream._log import logger

_KEPT: tuple[tuple[type[Any], tuple[str, ...]], ...] = (
    (keras.callbacks.EarlyStopping, ("wait", "stopped_epoch", "best", "best_epoch")),
    (keras.callbacks.ReduceLROnPlateau, ("wait", "cooldown_counter", "best")),
    (keras.callbacks.ModelCheckpoint, ("best", "epochs_since_last_save")),
)


@final
class OtherCallbacks:
    """kept: by class and place in it what each had come to when it was last remembered."""

    def __init__(self, users: Sequence[Any]) -> None:
        self.kept: dict[str, dict[str, Any]] = {}
        why = why_not_kept(users)
        if why:
            raise (ConfigurationError if why is _TWO else Unsupported)(why)
        counts: Counter[str] = Counter()
        self._named: dict[str, Any] = {}
        for each in users:
            kind = type(each).__name__
            self._named[f"{kind} {counts[kind]}"] = each
            counts[kind] += 1

    def remember(self) -> None:
        self.kept = {
            key: {name: getattr(each, name, None) for name in _names(each)}
            for key, each in self._named.items()
            if _names(each)
        }

    def restore(self, kept: Mapping[str, Mapping[str, Any]]) -> None:
        for key, each in self._named.items():
            for name, value in kept.get(key, {}).items():
                setattr(each, name, value)
        own = sorted({type(c).__name__ for c in self._named.values() if not _of_keras(c)})
        if own:
            logger.info(
                "%s begins anew: a checkpoint keeps no callback of one's own", ", ".join(own)
            )


def _names(callback: Any) -> tuple[str, ...]:
    return next((names for kind, names in _KEPT if isinstance(callback, kind)), ())


def _of_keras(callback: Any) -> bool:
    return type(callback).__module__.partition(".")[0] == "keras"


_TWO = (
    "Two callbacks would have fit go on, each from its own place. Received: BackupAndRestore "
    "beside dream.keras.Checkpoint. Leave BackupAndRestore out."
)
_BEST = (
    "A checkpoint does not hold the best weights that EarlyStopping keeps in memory. Received: "
    "restore_best_weights=True beside dream.keras.Checkpoint. Leave it out, and give Checkpoint "
    "best=, whose folder has them."
)


def why_not_kept(users: Sequence[Any]) -> str:
    """Say what keeps a fit with these callbacks from being saved; empty where nothing does."""
    if any(isinstance(each, keras.callbacks.BackupAndRestore) for each in users):
        return _TWO
    keeps = (each for each in users if isinstance(each, keras.callbacks.EarlyStopping))
    return _BEST if any(each.restore_best_weights for each in keeps) else ""
