"""When shares of `fit` are compared, and of how many samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, final

import pytest

from dream.adapters.keras.update.pace import KerasPace, StepClock
from dream.collectives import Communicator
from dream.data.partition import Divided, Division

BATCH = 16


@final
class Steps(StepClock):
    """Of the faster of two ranks."""

    samples = 0

    def begun(self, samples: Any, batch: Any) -> Any:
        self.samples += samples
        return batch

    def forget(self) -> None: ...

    def stop(self, tensors: Sequence[Any]) -> None:
        del tensors

    def taken(self) -> tuple[int, float]:
        found, self.samples = self.samples, 0
        return found, found * 1e-3


@final
class Ranks:
    """Two of them with halves of every batch, of which the other is three times as slow."""

    def all_gather_object(self, told: tuple[int, float, int, bool]) -> list[Any]:
        samples, seconds, batches, blind = told
        return [told, (samples, 3 * seconds, batches, blind)]


@pytest.mark.parametrize("batches", [1, 2, 3, 4, 10, 40])
def test_a_batch_is_told_from_several_that_are_trained_at_once(batches: int) -> None:
    divided = Divided(Division(2, (1, 1)))
    clock = Steps()
    pace = KerasPace(cast(Communicator, Ranks()), divided, clock)
    changed = 0
    while not changed:
        changed = pace.before_step(batches, lambda: False)
        for _ in range(batches):
            clock.begun(len(divided.now.rows(BATCH, 0)), None)
    assert divided.now.weights is not None
    assert sum(divided.now.weights) == BATCH
