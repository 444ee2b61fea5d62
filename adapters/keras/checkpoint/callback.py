"""`dream.keras.Checkpoint`, what a user gives to fit; and what fit's other callbacks have come to:
counts and bests, with which they go on."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, final

import keras

from dream._errors import ConfigurationError, Unsupported
from dream._log import logger
from dream.cluster import settings


@final
class Checkpoint(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """Saves in fit, and has fit go on where the newest checkpoint in a folder stands: in
    mid-epoch, under any strategy and number of ranks.

    path: a folder for checkpoints, made where there is none; None for that of `dream run
        --checkpoint`, and without one nothing is saved.
    every: so many steps, or "epoch"; None for "epoch", in the launcher's folder as often as it was
        told to (--every). The end of fit is saved too.
    keep: how many of the newest stay. best: a name in fit's logs whose smallest value stays too;
        epochs' ends are saved then.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        every: int | Literal["epoch"] | None = None,
        keep: int = 3,
        best: str | None = None,
    ) -> None:
        super().__init__()
        steps = isinstance(every, int) and not isinstance(every, bool) and every > 0
        if not steps and every not in ("epoch", None):
            raise ConfigurationError(
                "A checkpoint is saved every so many steps, or every epoch. Received: "
                f"every={every!r}. Give a number of steps, or 'epoch'."
            )
        if keep < 1:
            raise ConfigurationError(
                f"At least one checkpoint is kept. Received: keep={keep}. Give 1 or more."
            )
        asked = settings.checkpoints()
        self.path = asked.folder if path is None else Path(path)
        self.seconds = asked.every if path is None and every is None else None
        """Between two, where neither steps nor epochs say when."""

        self.every = every or (None if self.seconds else "epoch")
        self.keep, self.best = keep, best
        self.taken = False
        """Whether the fit that runs is one that dream saves."""

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.taken and self.path is not None:
            raise Unsupported(
                "This fit cannot be saved and resumed. Received: dream.keras.Checkpoint for "
                f"{self.model.name!r}, which was made outside of a block, trains under "
                "'parameter_server', or reads data of an order that no other process finds again "
                "(a tf.data.Dataset, a generator, a DataLoader). Make the model in `with "
                "dream.strategy(...)` ('single' is a strategy too), and give fit arrays or a "
                "keras.utils.PyDataset."
            )


_KEPT: tuple[tuple[type[Any], tuple[str, ...]], ...] = (
    (keras.callbacks.EarlyStopping, ("wait", "stopped_epoch", "best", "best_epoch")),
    (keras.callbacks.ReduceLROnPlateau, ("wait", "cooldown_counter", "best")),
    (keras.callbacks.ModelCheckpoint, ("best", "epochs_since_last_save")),
)


@final
class OtherCallbacks:
    """The script's own callbacks, whose figures checkpoints keep.

    kept: by class and place in it what each had come to when it was last remembered.
    """

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
        self.kept = {key: figures_of(each) for key, each in self._named.items() if _names(each)}

    def restore(self, kept: Mapping[str, Mapping[str, Any]]) -> None:
        for key, each in self._named.items():
            for name, value in kept.get(key, {}).items():
                setattr(each, name, value)
        own = sorted({type(c).__name__ for c in self._named.values() if not _of_keras(c)})
        if own:
            logger.info(
                "%s starts over: a checkpoint does not save custom callbacks", ", ".join(own)
            )


def figures_of(callback: Any) -> dict[str, Any]:
    """Return what a callback of Keras's has come to, by the names of its attributes."""
    return {name: getattr(callback, name, None) for name in _names(callback)}


def _names(callback: Any) -> tuple[str, ...]:
    return next((names for kind, names in _KEPT if isinstance(callback, kind)), ())


def _of_keras(callback: Any) -> bool:
    return type(callback).__module__.partition(".")[0] == "keras"


_TWO = (
    "Two callbacks would have fit go on, each from its own place. Received: BackupAndRestore "
    "beside dream.keras.Checkpoint. Remove BackupAndRestore."
)
_BEST = (
    "A checkpoint does not hold the best weights that EarlyStopping keeps in memory. Received: "
    "restore_best_weights=True beside dream.keras.Checkpoint. Remove it, and give Checkpoint "
    "best=, whose folder has them."
)


def why_not_kept(users: Sequence[Any]) -> str:
    """Say what keeps a fit with these callbacks from being saved; empty where nothing does."""
    if any(isinstance(each, keras.callbacks.BackupAndRestore) for each in users):
        return _TWO
    keeps = (each for each in users if isinstance(each, keras.callbacks.EarlyStopping))
    return _BEST if any(each.restore_best_weights for each in keeps) else ""
