"""Callbacks across ranks: those that write files run on rank 0, and all ranks start and stop
together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import keras

from dream.adapters.keras import private, private_backup
from dream.adapters.keras.data.standing import FIT_EPOCH, Standing, listed
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.start import same_weights
from dream.mixed.resync import Resync

_WRITERS = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
)


@final
class Follow(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """Keeps the ranks with each other: what rank 0's callbacks restored is every rank's."""

    async_safe = True  # it reads no logs in mid-epoch, so Keras need not wait for them

    def __init__(self, engine: Engine, standing: Standing, backups: Sequence[Any]) -> None:
        super().__init__()
        self._engine = engine
        self._standing = standing
        self._backups = backups

    def on_train_begin(self, logs: Any = None) -> None:
        epoch = private.first_epoch(self.model)
        kept = [] if epoch is None else [private_backup.kept(each) for each in self._backups]
        if _several_processes(self._engine):
            epoch, kept = self._engine.communicator.broadcast_object((epoch, kept))
            private.set_first_epoch(self.model, epoch)
            if epoch is not None:
                same_weights(self.model, self._engine)
        for state in filter(None, kept[:1]):
            self._standing.load(state)
            self._standing.check()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if _several_processes(self._engine):
            wishes = self._engine.communicator.all_gather_object(bool(self.model.stop_training))
            self.model.stop_training = any(wishes)


@final
class Resynchronise(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """Has ranks of two frameworks start from rank 0's weights again, every so many steps."""

    def __init__(self, resync: Resync) -> None:
        super().__init__()
        self._resync = resync

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._resync.before_step()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._resync.settle()


def for_rank(given: Any, engine: Engine) -> Any:
    """The callbacks that run here. given: None, a callback, a list or a CallbackList."""
    return of_rank(given, engine.rank)


def of_rank(given: Any, rank: int) -> Any:
    """The same, for a rank."""
    if isinstance(given, keras.callbacks.CallbackList) or rank == 0:
        return given
    return [c for c in private.tree.flatten(given or []) if not isinstance(c, _WRITERS)]


def backups(given: Any, standing: Standing) -> list[Any]:
    """The callbacks that keep the training in mid-epoch, which keep its place in the data too."""
    found = [c for c in listed(given) if isinstance(c, keras.callbacks.BackupAndRestore)]
    for each in found:
        private_backup.keep_with(each, standing.known_state, FIT_EPOCH)
    return found


def before(ours: keras.callbacks.Callback, given: Any) -> Any:
    """The callbacks with ours before them."""
    if isinstance(given, keras.callbacks.CallbackList):
        given.callbacks.insert(0, ours)
        return given
    return [ours, *listed(given)]


def joined(given: Any, ours: list[keras.callbacks.Callback]) -> Any:
    """The callbacks with ours after them."""
    if isinstance(given, keras.callbacks.CallbackList):
        for callback in ours:
            given.append(callback)
        return given
    return [*private.tree.flatten(given or []), *ours]


def _several_processes(engine: Engine) -> bool:
    return engine.parts > 1 and not engine.pooled
