"""`local_sgd` in Keras: replicas step alone, and are averaged on every k-th step.

On that step gradients, and parameters and the optimizer's tensors where these are apart, are
averaged, and the step is made on what comes out: the replicas are then alike to the bit. With
k = 1 only gradients travel, so it is what `mirrored` does, whatever the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import keras
import numpy as np
from numpy.typing import NDArray

from dream._errors import Unsupported
from dream.adapters.keras import consistency
from dream.adapters.keras.asynchronous.machine import Machine
from dream.adapters.keras.consistency import statistics_of
from dream.adapters.keras.engine import Engine


@final
class Averages:
    """Of one model and its optimizer. every: steps from one average to the next."""

    def __init__(self, engine: Engine, machine: Machine, every: int) -> None:
        self._engine, self._machine, self._every = engine, machine, every
        self._model: Any = None
        self._optimizer: Any = None
        self._update: Callable[[Any, bytes], Any]
        self._steps = 0
        self._apart = self._stepped = False
        self.order: list[Any] = []
        self.gradient: NDArray[Any]

    def begin(self, model: Any, optimizer: Any) -> None:
        """Rank 0's weights and state on every rank: before each fit, and the first step."""
        if self._model is None:
            self._model, self._optimizer = model, optimizer
            self.order = list(model.trainable_variables)
            self.gradient = self._machine.flat(self.order)
            self._update = self._machine.update(optimizer, self.order)
            if self._engine.parts > 1:
                consistency.offset_seeds(model, self._engine)
                consistency.report_local_statistics(model)
        if self._model is not model or self._optimizer is not optimizer:
            raise Unsupported(
                "Replicas are averaged by the steps of one optimizer over one model. Received: "
                f"another one, {type(optimizer).__name__} over {model.name!r}. Train one model in "
                "a job."
            )
        if self._engine.parts > 1:
            consistency.agree_on(model, [optimizer], self._engine)

    def step(self, samples: float, present: bytes) -> None:
        """A step on `gradient`, the mean over so many samples; of none, it is 0."""
        if not samples:
            self.gradient.fill(0)
            present = b""
        self._steps += 1
        self._stepped = True
        if self._steps % self._every == 0:
            self._average_gradient(samples)
            if self._apart:
                self._average(self._own())
            self._apart = False
            present = b""
        else:
            self._apart = True
        self._update(self.gradient, present)

    def settle(self) -> None:
        """Make the replicas alike. Every rank calls it."""
        if not self._stepped:
            return
        self._stepped = False
        self._average([*(self._own() if self._apart else []), *statistics_of(self._model)])
        self._apart = False

    def _average_gradient(self, samples: float) -> None:
        """The mean over the samples of all ranks."""
        mine = np.append(self.gradient * self.gradient.dtype.type(samples), samples)
        total = self._engine.communicator.all_reduce(mine.astype(self.gradient.dtype), "sum")
        if total[-1]:
            np.divide(total[:-1], total[-1], out=self.gradient)

    def _average(self, variables: Sequence[Any]) -> None:
        if variables and self._engine.parts > 1:
            values = [np.array(keras.ops.convert_to_numpy(v)) for v in variables]
            means = self._engine.communicator.all_reduce(values, "mean")
            for variable, mean in zip(variables, means, strict=True):
                variable.assign(mean)

    def _own(self) -> list[Any]:
        """Parameters and the optimizer's tensors; its counters are alike anyway."""
        state = [v for v in self._optimizer.variables if "float" in str(v.dtype) and len(v.shape)]
        return [*self.order, *state]
