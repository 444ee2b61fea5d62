"""Rank 0's weights, taken again now and then by ranks of two frameworks.

Every rank applies the same gradients, to the bit, but by its own framework's arithmetic. Rounding
makes them drift by about 1e-7 in some hundred steps. What is called by one name may differ by
more: Adam's epsilon is added before Keras corrects for the first steps, and after torch does. So
the drift is measured: after the first step, and at each broadcast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from dream._log import logger
from dream.collectives import Communicator
from dream.mixed.consistency import gathered

USUAL = 100
"""Steps between broadcasts, where ranks differ by rounding only."""
ROUNDING = 1e-5
"""Most that rounding may have done to a weight, in times of the largest one, or of 1."""

Take = Callable[[], float]
"""Has every rank take rank 0's weights; how far this rank's were from them, as in ROUNDING."""


@final
class Resync:
    """Counts a model's steps. Every rank makes the same calls.

    every: steps between broadcasts; 0 for none; None for the usual, or for 1 where the ranks'
        optimizers turn out to take different steps.
    """

    def __init__(self, communicator: Communicator, every: int | None, take: Take) -> None:
        self._communicator = communicator
        self._take = take
        self._asked = every
        self._every = USUAL if every is None else every
        self._steps = self._settled = 0
        self._told = False

    def before_step(self) -> None:
        steps = self._steps
        if steps and (steps == 1 or (self._every and steps % self._every == 0)):
            self._bring_together()
        self._steps += 1

    def settle(self) -> None:
        """No step follows for now: let all ranks hold the same weights."""
        if self._steps > self._settled:
            self._bring_together()

    def _bring_together(self) -> None:
        since, self._settled = self._steps - self._settled, self._steps
        if self._asked == 0 or not since:
            return
        drift = max(gathered(self._communicator, self._take(), "takes rank 0's weights again"))
        if drift > ROUNDING and self._every != 1:
            self._judge(drift, since)

    def _judge(self, drift: float, since: int) -> None:
        if self._asked is None:
            self._every = 1
            now = "from now on rank 0's are taken after every step, so its optimizer counts"
        else:
            now = f"they are rank 0's again every {self._every} steps, as resync= says"
        if not self._told:
            self._told = True
            logger.warning(
                "the ranks' optimizers take different steps: weights were %.0e apart after %d; %s. "
                "Adam's eps differs between Keras and torch; learning rates may, too",
                drift, since, now,
            )  # fmt: skip


@final
class Resyncs:
    """Takes rank 0's weights again, for all models of one block. every: as `Resync` takes it."""

    def __init__(self, every: int | None) -> None:
        self._every = every
        self._all: list[Resync] = []

    def add(self, communicator: Communicator, take: Take) -> Resync:
        """One more model. On every rank in the same order."""
        made = Resync(communicator, self._every, take)
        self._all.append(made)
        return made

    def settle(self) -> None:
        """A pass over the data has ended, or figures are asked for."""
        for resync in self._all:
            resync.settle()
