"""Where fit stands in its data, and how another process goes on from there."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, final

import keras

from dream import stall
from dream._errors import ConfigurationError, Unsupported
from dream.adapters.keras import private
from dream.adapters.keras.data.sources import Passes
from dream.data.position import Position

FIT_EPOCH = "fit_epoch"


@final
class Standing:
    """Of one model's fits. fit_epoch: the epoch as fit counts it, where `position` counts passes
    over all fits."""

    def __init__(self, passes: Passes) -> None:
        self.position = Position()
        self.fit_epoch = 0
        self.going_on = False
        self._passes = passes
        self._why_not = ""
        self._size = 0
        self._batches: int | None = None

    def state(self) -> dict[str, Any]:
        if self._why_not:
            raise Unsupported(
                "Where fit stands in this data cannot be kept, since another process may be given "
                f"other batches. Received: {self._why_not}. Give fit arrays or a "
                "keras.utils.PyDataset; or take a tf.data.Dataset through strategy.prepare and "
                "strategy.train_step."
            )
        return self.position.state({FIT_EPOCH: self.fit_epoch})

    def load(self, state: Mapping[str, Any]) -> None:
        self.fit_epoch = int(state.get(FIT_EPOCH, 0))
        self.position = Position.of(state, {FIT_EPOCH: self.fit_epoch})
        self.going_on = True

    def unknown(self, why_not: str) -> None:
        """A fit begins on data whose order is another process's own. why_not: what it is."""
        if self.going_on and self.position.batches:
            self._why_not = why_not
            self.state()
        self._why_not, self.going_on = why_not, False

    def known_state(self) -> dict[str, Any] | None:
        return None if self._why_not else self.state()

    def first_epoch(self, given: int) -> int:
        """That of a fit which begins, for which the user gave one."""
        if not self.going_on:
            return given
        if given not in (0, self.fit_epoch):
            raise ConfigurationError(
                "fit cannot start at one epoch and go on in another. Received: initial_epoch="
                f"{given}, a state of epoch {self.fit_epoch}. Leave initial_epoch out."
            )
        self._passes.next = self.position.epoch
        return self.fit_epoch

    def reads(self, source: Any, why_not: str) -> None:
        """A fit begins on dealt data. why_not: what makes its order another process's own."""
        self._why_not, self._batches = why_not, source.num_batches
        self._size = source.batch_size or 0
        if self.going_on:
            self.check()

    def check(self) -> None:
        """Whether this fit's batches are those that were counted."""
        if self._why_not and self.position.batches:
            self.state()
        if self.position.samples != self.position.batches * self._size:
            raise ConfigurationError(
                "Batches of another size were taken before. Received: batch_size="
                f"{self._size}, {self.position.samples} samples in {self.position.batches} "
                "batches in the state. Use the same global batch size; the number of replicas may "
                "be another."
            )

    def begin(self, epoch: int, drawn: int) -> None:
        """An epoch of fit, which is pass number `drawn`, begins."""
        goes_on = self.going_on and epoch == self.fit_epoch
        self._passes.left_out = self.position.batches if goes_on else 0
        if not goes_on:
            self.position = Position(drawn)
        self.fit_epoch, self.going_on = epoch, False

    def taken(self, batches: int) -> None:
        """So many batches of fit's epoch have been handed out."""
        count = self._passes.left_out + batches
        self.position = Position(self.position.epoch, count, count * self._size)

    def end(self) -> None:
        """The epoch is over; in its midst where training was stopped."""
        if self._batches is None or self.position.batches >= self._batches:
            self.position = Position(self.position.epoch + 1)
            self.fit_epoch += 1
        self._passes.left_out = 0


def listed(callbacks: Any) -> list[Any]:
    """As fit is given them: none, one, several, or a CallbackList."""
    inner = getattr(callbacks, "callbacks", callbacks)
    return list(private.tree.flatten(inner or []))


class Counting(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """Counts batches as they begin, before other callbacks ask."""

    async_safe = True  # it reads no logs, so Keras need not wait for them

    def __init__(self, standing: Standing, passes: Passes, first: int, *, by_epoch: bool) -> None:
        """first: the epoch that fit starts with. by_epoch: whether each is one pass."""
        super().__init__()
        self._standing = standing
        self._passes = passes
        self._offset = passes.next - first
        self._by_epoch = by_epoch
        self._began = self._begun = 0
        self._quiet = ExitStack()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._began = self._begun = 0
        standing = self._standing
        if standing.going_on:
            self._offset = standing.position.epoch - standing.fit_epoch
        if standing.going_on and standing.position.batches:
            self._quiet.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", message="Your input ran out of data")
        self._standing.begin(epoch, epoch + self._offset)
        if self._by_epoch:
            self._passes.next = epoch + self._offset

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        stall.stepped()
        self._standing.taken(batch)
        self._began, self._begun = batch, batch + self.model.steps_per_execution

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._quiet.close()
        self._standing.taken(self._begun)
        self._standing.end()


@final
class CountingEnds(Counting):
    """Counts them as they end too, for callbacks that ask then. (Keras waits for the logs of
    every batch where any callback looks at ends.)"""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Where all callbacks are async_safe Keras calls it in threads, and it may come late."""
        if batch >= self._began:
            self._standing.taken(batch + 1)


def counting(
    standing: Standing, passes: Passes, given: Any, first: int, *, by_epoch: bool
) -> Counting:
    """What counts for fit. given: the other callbacks."""
    looks = keras.callbacks.Callback.on_train_batch_end
    asked = any(type(c).on_train_batch_end is not looks for c in listed(given))
    kind = CountingEnds if asked else Counting
    return kind(standing, passes, first, by_epoch=by_epoch)
