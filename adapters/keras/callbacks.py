"""Callbacks across ranks: those that write files run on rank 0, all ranks start and stop together,
and batches are counted for who goes on from there."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, final

import keras
from keras import tree

from dream import stall
from dream._errors import ConfigurationError
from dream._log import logger
from dream.adapters.keras import private
from dream.adapters.keras.checkpoint import model_files
from dream.adapters.keras.checkpoint import private as private_checkpoint
from dream.adapters.keras.checkpoint.callback import Checkpoint, figures_of, why_not_kept
from dream.adapters.keras.checkpoint.saver import FitSaver
from dream.adapters.keras.consistency import set_metric_values, take_weights
from dream.adapters.keras.data.resume import FIT_EPOCH, FitProgress
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.randomness.in_step import InStep
from dream.checkpoint.leaving import Notice
from dream.cluster import settings
from dream.data import tracked
from dream.data.alike import of_one_place
from dream.mixed.resync import Resync

_WRITERS = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
)


def saves(given: Any) -> bool:
    """Whether a fit with these callbacks is saved, by one of them or for the launcher."""
    asked = [each.path for each in listed(given) if isinstance(each, Checkpoint)]
    return any(path is not None for path in (*asked, settings.checkpoints().folder))


def for_fit(
    given: Any, engine: Engine, progress: FitProgress, resync: Resync | None, notice: Notice
) -> Any:
    """Add dream's callbacks to a fit's on this rank. given: None, a callback, a list or a
    CallbackList. notice: hears whether the fit is to leave."""
    users = listed(given)
    backups = [c for c in users if isinstance(c, keras.callbacks.BackupAndRestore)]
    for backup in backups:
        private_checkpoint.backup_with(backup, progress.state_if_ordered, FIT_EPOCH)
    ignores_ends = keras.callbacks.Callback.on_train_batch_end
    asks = any(type(c).on_train_batch_end is not ignores_ends for c in users)
    counting = (CountBatchEnds if asks else CountBatches)(progress)
    ours: list[Any] = [SameOnEveryRank(engine, progress, backups)]
    if resync is not None:
        ours.append(Resynchronise(resync))
    asked = [c for c in users if isinstance(c, Checkpoint)] or _by_launcher(progress, users)
    others = [c for c in users if not isinstance(c, Checkpoint)]
    savers = [FitSaver(each, engine, progress, others, notice) for each in asked if each.path]
    if not savers:
        notice.rest()
    ours += savers
    return joined(given, ours, before=[counting])


def saved_alone(given: Any, steps: Any, progress: FitProgress) -> Any:
    """Add what saves a fit of replicas that step alone. steps: which make it, of `WorkerSteps`."""
    users = listed(given)
    others = [c for c in users if not isinstance(c, Checkpoint)]
    named = [c for c in users if isinstance(c, Checkpoint)]
    asked = [c for c in named or _by_launcher(progress, users) if c.path is not None]
    savers = [steps.saver(each, progress, others) for each in asked]
    found = [each for each in savers if each is not None]
    if asked and not found and not named:
        logger.info("this fit is not saved in %s: under 'parameter_server' the servers hold what a "
                    "checkpoint would; snapshot_every= keeps it", asked[0].path)  # fmt: skip
    return joined(given, found, before=[CountBatches(progress)]) if found else given


def _by_launcher(progress: FitProgress, users: Sequence[Any]) -> list[Checkpoint]:
    """Save a fit that asks for nothing itself, under `dream run --checkpoint`; or say why not."""
    asked = Checkpoint()
    if asked.path is None:
        return []
    why = why_not_kept(users)
    if progress.state_if_ordered() is None:
        why = (
            "it reads data of an order that no other process finds again. Give it arrays or a "
            "keras.utils.PyDataset."
        )
    if why:
        logger.info("this fit is not saved in %s: %s", asked.path, why)
    return [] if why else [asked]


def may_go_on(given: Any) -> bool:
    """Whether a callback may have fit go on in mid-epoch."""
    kinds = (Checkpoint, keras.callbacks.BackupAndRestore)
    asked = settings.checkpoints().folder is not None
    return asked or any(isinstance(each, kinds) for each in listed(given))


def of_rank(given: Any, rank: int) -> Any:
    """Return the callbacks that run on a rank."""
    if isinstance(given, keras.callbacks.CallbackList) or rank == 0:
        return given
    for writer in (c for c in listed(given) if isinstance(c, _WRITERS)):
        if isinstance(writer, keras.callbacks.ModelCheckpoint):  # which scripts load from
            model_files.left_to_rank_0(writer.filepath, type(writer).__name__)
    return [c for c in listed(given) if not isinstance(c, _WRITERS)]


def settle(given: Any, engine: Engine) -> None:
    """Wait for rank 0's fit, and have the ModelCheckpoints that ran there alone come to the same on
    every rank. given: a fit's callbacks, before `of_rank`, be they rank 0's alone."""
    if isinstance(given, keras.callbacks.CallbackList):
        given = None  # all ran
    writers = [c for c in listed(given) if isinstance(c, keras.callbacks.ModelCheckpoint)]
    said = engine.communicator.broadcast_object([figures_of(each) for each in writers])
    for writer, figures in zip(writers, said, strict=False):
        vars(writer).update(figures)


def joined(given: Any, after: Sequence[Any], before: Sequence[Any] = ()) -> Any:
    """Return the callbacks with others before and after them."""
    if isinstance(given, keras.callbacks.CallbackList):
        given.callbacks[:0] = before
        for callback in after:
            given.append(callback)
        return given
    return [*before, *listed(given), *after]


def listed(given: Any) -> list[Any]:
    """List callbacks as fit is given them: none, one, several, or a CallbackList."""
    inner = given.callbacks if isinstance(given, keras.callbacks.CallbackList) else given
    return list(tree.flatten(inner or []))


@final
class SameOnEveryRank(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """Keeps the ranks with each other: what rank 0's callbacks restored is every rank's."""

    async_safe = True  # it reads no logs in mid-epoch, so Keras need not wait for them

    def __init__(self, engine: Engine, progress: FitProgress, backups: Sequence[Any]) -> None:
        super().__init__()
        self._engine = engine
        self._in_step = InStep(engine)
        self._progress = progress
        self._backups = backups

    def on_train_begin(self, logs: Any = None) -> None:
        epoch = private.first_epoch(self.model)
        kept = (
            [] if epoch is None else [private_checkpoint.kept_with(each) for each in self._backups]
        )
        if self._engine.several_processes:
            epoch, kept = self._engine.communicator.broadcast_object((epoch, kept))
            private.set_first_epoch(self.model, epoch)
            if epoch is not None:
                take_weights(self.model, self._engine)
        for state in filter(None, kept[:1]):
            self._progress.load(state)
            self._progress.check()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._engine.several_processes:
            own = bool(self.model.stop_training), self._in_step.word(self.model)
            here = "at the end of an epoch", own
            said = of_one_place(self._engine.communicator.all_gather_object(here))
            self.model.stop_training = any(stops for stops, _ in said)
            if self._in_step.kept:
                self._in_step.heard([word for _, word in said], self.model)


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


class CountBatches(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """Counts batches as they begin, before other callbacks ask."""

    async_safe = True  # it reads no logs, so Keras need not wait for them

    def __init__(self, progress: FitProgress) -> None:
        super().__init__()
        self._progress = progress
        self._began = self._begun = 0
        self._steps: int | None = 0
        self._quiet = ExitStack()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._began = self._begun = 0
        self._steps = self._progress.steps
        goes_on = self._progress.begin_epoch(epoch)
        if goes_on:
            set_metric_values(self.model, goes_on)
        if self._progress.passes.left_out:
            self._quiet.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", message="Your input ran out of data")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        stall.stepped()
        tracked.handed.samples += self._progress.size * self.model.steps_per_execution
        self._progress.count(batch)
        self._began, self._begun = batch, batch + self.model.steps_per_execution

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._quiet.close()
        none = self._progress.steps is not None and self._steps == self._progress.steps
        if none and not self._progress.passes.left_out:
            raise ConfigurationError(
                f"An epoch had no training steps. Received: no batch in epoch {epoch + 1}. Give "
                "fit data that begins anew each epoch (arrays, a keras.utils.PyDataset, a "
                "tf.data.Dataset), or as many epochs as it lasts for."
            )
        self._progress.count(self._begun)
        self._progress.end_epoch()


@final
class CountBatchEnds(CountBatches):
    """Counts them as they end too, for callbacks that ask then. (Keras waits for the logs of
    every batch where any callback looks at ends.)"""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Where all callbacks are async_safe Keras calls it in threads, and it may come late."""
        if batch >= self._began:
            self._progress.count(batch + 1)
