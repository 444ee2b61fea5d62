"""Where fit stands in its data, and how another process goes on from there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.keras.data.sources import Arrays, Batches, DataPasses
from dream.adapters.keras.randomness.start import Generators
from dream.data.position import Position

FIT_EPOCH = "fit_epoch"
_METRICS = "metrics"
_DATA = "fit_data"
ORDER_SEED = "order_seed"
DRAWN_FROM = "drawn_from"


@final
class FitProgress:
    """How far one model's fits have come.

    passes: over training data so far. fit_epoch: the epoch as fit counts it, where `position`
    counts passes over all fits. resuming: whether the next epoch goes on in a loaded state's.
    metrics: gives the states of the model's metrics, with which an epoch goes on. ended: whether
    all ranks have read the parts of the pass. steps: of all
    fits, where the function that takes them counts them; None where none does. taken: batches of
    the epoch that ended last, without those that were taken before this fit.
    """

    cut = False  # fit reads on

    def __init__(self, generators: Generators | None = None) -> None:
        self.passes = DataPasses(generators=generators)
        self.position = Position()
        self.fit_epoch = 0
        self.resuming = False
        self.metrics: Callable[[], list[Any]] = list
        self.ended: Callable[[], bool] = lambda: False
        self.steps: int | None = None
        self.taken = 0
        self._loaded_metrics: list[Any] = []
        self._unordered = ""
        self._size = 0
        self._batches: int | None = None
        self._trained_on: Mapping[str, int] = {}
        self._data: dict[str, int] = {}
        self._offset = 0
        self._by_epoch = True
        self._order_seed: int | None = None

    def state(self) -> dict[str, Any]:
        if self._unordered:
            raise Unsupported(
                "Where fit stands in this data cannot be kept, since another process may be given "
                f"other batches. Received: {self._unordered}. Give fit arrays or a "
                "keras.utils.PyDataset; or take a tf.data.Dataset through strategy.prepare and "
                "strategy.train_step."
            )
        kept = dict(self.passes.kept) if self.passes.seed is None and self.position.batches else {}
        state = self.position.state(
            {FIT_EPOCH: self.fit_epoch, ORDER_SEED: self.passes.seed, DRAWN_FROM: kept,
             _DATA: self._data}
        )  # fmt: skip
        return {**state, _METRICS: self.metrics()} if self.position.batches else state

    def state_if_ordered(self) -> dict[str, Any] | None:
        return None if self._unordered else self.state()

    def load(self, state: Mapping[str, Any]) -> None:
        self.fit_epoch = int(state.get(FIT_EPOCH, 0))
        self.position = Position.of(state, {FIT_EPOCH: self.fit_epoch})
        self._loaded_metrics = list(state.get(_METRICS, ()))
        self._trained_on = state.get(_DATA) or {}
        self.resuming = True
        self._order_seed = state.get(ORDER_SEED)
        self.passes.again = state.get(DRAWN_FROM) or {}
        self._go_on_with_seed()

    def begin_unordered(self, what: str) -> None:
        """Begin a fit on data, `what`, whose order is another process's own."""
        if self.resuming and self.position.batches:
            self._unordered = what
            self.state()
        self._unordered, self.resuming = what, False

    def begin_fit(self, initial_epoch: int, seed: int | None, *, by_epoch: bool) -> int:
        """Begin a fit, and return its first epoch. seed: of the orders of its passes; by_epoch:
        whether each is one pass."""
        self.passes.seed = seed
        if self.resuming:
            self._go_on_with_seed()
        self.passes.next = max(self.passes.next, initial_epoch)
        first = initial_epoch
        if self.resuming:
            if initial_epoch not in (0, self.fit_epoch):
                raise ConfigurationError(
                    "fit cannot start at one epoch and go on in another. Received: "
                    f"initial_epoch={initial_epoch}, a state of epoch {self.fit_epoch}. Remove "
                    "initial_epoch."
                )
            self.passes.next, first = self.position.epoch, self.fit_epoch
        self._offset = self.passes.next - first
        self._by_epoch = by_epoch
        return first

    def _go_on_with_seed(self) -> None:
        """Draw orders as the fit did that is gone on with."""
        if self._order_seed is not None:
            self.passes.seed = self._order_seed
        elif self.position.batches:
            self.passes.seed = None

    def read_from(self, source: Arrays | Batches, unordered: str) -> None:
        """Read this fit's batches from a source. unordered: what makes its order another
        process's own."""
        self._unordered, self._batches = unordered, source.num_batches
        self._size = source.batch_size or 0
        samples = source.samples if isinstance(source, Arrays) else None
        known = {"samples": samples, "batches": self._batches, "batch_size": self._size or None}
        self._data = {name: number for name, number in known.items() if number is not None}
        if self.resuming:
            self.check()

    def check(self) -> None:
        """Check that this fit's batches are those that were counted."""
        self._check(self.position, self._trained_on)

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Check that a state is of this fit's batches, before it is loaded."""
        position = Position.of(state, {FIT_EPOCH: state.get(FIT_EPOCH, 0)})
        self._check(position, state.get(_DATA) or {})

    def _check(self, position: Position, trained_on: Mapping[str, int]) -> None:
        """trained_on: what was known of the data."""
        if self._unordered and position.batches:
            self.state()
        if position.samples != position.batches * self._size:
            raise ConfigurationError(
                "Batches of another size were taken before. Received: batch_size="
                f"{self._size}, {position.samples} samples in {position.batches} "
                "batches in the state. Use the same global batch size; the number of replicas may "
                "be another."
            )
        other = {k: n for k, n in trained_on.items() if self._data.get(k, n) != n}
        if other:
            raise ConfigurationError(
                "Other data was trained on before, or in other batches. Received: "
                f"{_told(self._data, other)} here, {_told(other, other)} in the state. Use the "
                "same samples and the same global batch size; the number of replicas may be "
                "another."
            )

    def begin_epoch(self, epoch: int) -> list[Any]:
        """Begin an epoch, and return the metrics' states to go on with, where it goes on."""
        if self.resuming:
            self._offset = self.position.epoch - self.fit_epoch
        goes_on = self.resuming and epoch == self.fit_epoch
        self.passes.left_out = self.position.batches if goes_on else 0
        if not self.passes.left_out:
            self.passes.again = {}
        if not goes_on:
            self.position = Position(epoch + self._offset)
        if self._by_epoch:
            self.passes.next = epoch + self._offset
        self.fit_epoch, self.resuming = epoch, False
        loaded, self._loaded_metrics = self._loaded_metrics, []
        return loaded if goes_on else []

    @property
    def size(self) -> int:
        """The global batch's, as far as it is known; 0 where it is not."""
        return self._size

    @property
    def over(self) -> bool:
        """Whether an epoch that went on has had the last of its batches. What a graph does without
        a batch must not be done once more to find that out."""
        known = self._batches is not None and self.passes.left_out > 0
        return known and self.position.batches >= (self._batches or 0)

    def count(self, batches: int) -> None:
        """Note that so many batches of fit's epoch have been handed out."""
        total = self.passes.left_out + batches
        self.position = Position(self.position.epoch, total, total * self._size)

    def end_epoch(self) -> None:
        """End the epoch, or stop in its midst where training was stopped."""
        self.taken = (self._batches or self.position.batches) - self.passes.left_out
        if self._batches is None or self.position.batches >= self._batches:
            self.position = Position(self.position.epoch + 1)
            self.fit_epoch += 1
        self.passes.left_out = 0


def _told(numbers: Mapping[str, int], names: Iterable[str]) -> str:
    return ", ".join(f"{name}={numbers[name]}" for name in names)
