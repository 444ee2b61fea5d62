"""Saves a fit for a `Checkpoint`, and has it go on: after all other callbacks, so that they have
seen what it keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final
from weakref import ref

import keras

from dream._errors import ConfigurationError, Unsupported
from dream._log import logger
from dream.adapters.keras import private
from dream.adapters.keras.checkpoint.callback import Checkpoint, OtherCallbacks
from dream.adapters.keras.checkpoint.checkpointer import KerasCheckpointer
from dream.adapters.keras.data.resume import FitProgress
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.optimizer import optimizers_of
from dream.checkpoint import job
from dream.checkpoint.background import Saving
from dream.checkpoint.checkpointer import Parts
from dream.checkpoint.commits import Commits
from dream.checkpoint.content import CheckpointContent as Content
from dream.checkpoint.leaving import Agreed, Notice, StepEnds, leave
from dream.checkpoint.saves import Saves

_FIT = "fit"
_fits: dict[Path, list[ref[Any]]] = {}
"""The models of this process's fits that began with a folder: a script that is started again comes
to the fit that it was in by the same way."""


@final
class FitSaver(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    async_safe = True  # it reads no logs in mid-epoch, so Keras need not wait for them

    def __init__(
        self, asked: Checkpoint, engine: Engine, progress: FitProgress, users: Sequence[Any],
        notice: Notice, alone: KerasCheckpointer | None = None,
    ) -> None:  # fmt: skip
        """notice: hears whether the fit is to leave. alone: what saves replicas that step alone, at
        the ends of epochs: metrics are each one's own within."""
        super().__init__()
        if alone is not None and isinstance(asked.every, int):
            raise Unsupported(
                "Replicas that step alone have figures of their own within an epoch, so their fit "
                f"is saved at epochs' ends. Received: every={asked.every} under 'local_sgd'. "
                "Remove every."
            )
        asked.taken = True
        assert asked.path is not None
        self._path = asked.path
        self._asked, self._engine, self._progress = asked, engine, progress
        self._notice = notice
        notice.listen()
        self._commits = Commits(engine.readers, self._path)
        self._ends = StepEnds(engine.readers, self._notice, asked.seconds, self._commits)
        self._others = OtherCallbacks(users)
        self._held = alone or KerasCheckpointer(engine)
        self._within = alone is None
        self._saves = Saves(engine.readers)
        self._end: Saving | None = None
        self._fit = 0
        self._step = self._saved = self._base = 0
        self._logs: list[tuple[int, dict[str, float]]] = []
        self._goes_on = self._alike = False
        self._random: Mapping[str, Any] | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        fits = _fits.setdefault(self._path.resolve(), [])
        fits.append(ref(self.model))
        self._fit = len(fits)
        self._alike = all(each() is self.model for each in fits)
        self._ends.listen()
        self._progress.state()  # raises where no other process can go on in this data
        found = job.find(self._path, self._engine.readers, self._commits)
        kept = found and found.extra.get(_FIT)
        if found and not kept:
            raise ConfigurationError(
                f"This checkpoint does not contain the position of a fit. Received: {self._path}, "
                "which strategy.save wrote. Load it by strategy.load before fit, and give "
                "dream.keras.Checkpoint another folder."
            )
        if not found or not kept or kept["number"] < self._fit:
            self._step = self._saved = found.step if found else 0
        elif kept["number"] > self._fit:
            if not kept["alike"]:
                raise ConfigurationError(
                    "A script that fits several models cannot go on in one folder, which holds the "
                    f"last one alone. Received: {self._path}, of fit {kept['number']}. Give each "
                    "fit a dream.keras.Checkpoint with a folder of its own, and begin anew."
                )
            self._leave_out(f"{self._path} is of fit {kept['number']} of the script")
        else:
            self._go_on(found, kept)
        self._others.remember()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._base = self._step
        if self._goes_on:
            self._restore_history()
        self._others.remember()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._random is not None:  # the order of the samples has been drawn again
            self._held.set_random(self._random, {"": self.model})
            self._random = None
        self._step = self._base + batch
        if self._within:
            self._save_where_asked()

    def _save_where_asked(self, *, force: bool = False) -> None:
        """Save what is due between two steps, and leave where that was asked for."""
        agreed = self._ends.came(ask=force) or Agreed(leaves=False, due=False)
        due = agreed.due or (self._within and self._due())
        again = agreed.leaves and agreed.again
        if again or (agreed.commits and not agreed.leaves and not due):
            self._commits.take(
                self._parts(), self._step, self._held, extra=self._extra({}, over=False),
                facts=self._facts,
            )  # fmt: skip
            if again and self._commits.taken():
                leave(self._notice, None)
        if agreed.leaves or due:
            saving = self._save({}, over=False)
            if agreed.leaves:
                leave(self._notice, saving.wait())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._progress.position.batches:
            return  # stopped in mid-epoch, whose logs are of a part
        self._step = self._base + self._progress.taken
        figures = {name: float(value) for name, value in (logs or {}).items()}
        self._logs.append((epoch, figures))
        self._others.remember()
        stops = bool(self.model.stop_training)
        last = stops or epoch + 1 >= self.params["epochs"]
        if last or self._due() or self._asked.every == "epoch" or self._asked.best is not None:
            saving = self._save(figures, over=stops)
            self._end = saving if last else None
        if not self._within and not last:
            self._save_where_asked(force=True)

    def on_train_end(self, logs: Any = None) -> None:
        if self._goes_on:
            self._restore_history()
        private.set_first_epoch(self.model, None)  # Keras would begin the next fit there
        self._asked.taken = False
        try:
            self._leave_at_the_end()
            self._saves.finish()
        finally:
            self._ends.rest()

    def _leave_at_the_end(self) -> None:
        """Where a rank was asked since the last step, in an evaluation say. The end is saved
        already, where fit came to it."""
        if self._end is not None and self._ends.ended() is not None:
            leave(self._notice, self._end.wait())

    def _due(self) -> bool:
        every = self._asked.every
        return isinstance(every, int) and self._step // every > self._saved // every

    def _save(self, figures: dict[str, float], *, over: bool) -> Saving:
        self._saved = self._step
        return self._saves.save(
            self._path, self._parts(), self._step, self._held,
            extra=self._extra(figures, over=over), facts=self._facts,
            keep=self._asked.keep, best=self._asked.best,
        )  # fmt: skip

    def _extra(self, figures: Mapping[str, float], *, over: bool) -> dict[str, Any]:
        kept = {
            "number": self._fit, "alike": self._alike, "over": over, "logs": self._logs,
            "callbacks": self._others.kept,
        }  # fmt: skip
        return {**figures, _FIT: kept}

    @property
    def _facts(self) -> dict[str, Any]:
        from dream import __version__

        return {
            "framework": self._engine.framework, "dream": __version__,
            "world_size": self._engine.readers.world_size, "global_batch": self._progress.size,
        }  # fmt: skip

    def _go_on(self, found: Content, kept: dict[str, Any]) -> None:
        self._progress.check_state(found.data or {})
        found = job.take(found, self._parts(), self._held)
        self._step = self._saved = found.step
        self._logs = [(epoch, dict(figures)) for epoch, figures in kept["logs"]]
        self._others.restore(kept["callbacks"])
        self._goes_on = True
        self._random = found.random if self._progress.position.batches else None
        private.set_first_epoch(self.model, self._progress.fit_epoch)
        logger.info(
            "fit goes on at step %d, epoch %d, of %s", found.step, self._progress.fit_epoch + 1,
            self._path,
        )  # fmt: skip
        if kept["over"]:
            self._leave_out(f"it was stopped after epoch {self._progress.fit_epoch}")

    def _leave_out(self, why: str) -> None:
        logger.info("this fit is over: %s. Nothing is trained", why)
        private.set_first_epoch(self.model, self.params["epochs"])

    def _parts(self) -> Parts:
        found = optimizers_of(self.model)
        named = {"": found[0]} if len(found) == 1 else {str(i): o for i, o in enumerate(found)}
        return Parts({"": self.model}, named, data=self.model)

    def _restore_history(self) -> None:
        """Have fit's history tell of the epochs before, too. Keras's own begins anew after this
        callback does."""
        self._goes_on = False
        history = self.model.history
        history.epoch[:0] = [epoch for epoch, _ in self._logs]
        for _, figures in self._logs:
            for name, value in figures.items():
                history.history.setdefault(name, []).append(value)
