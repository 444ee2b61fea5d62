"""`recompute="auto"` of Keras models on torch: the first update's calls are measured, as those of
torch's modules are. Keras takes calls past torch's own, so its layers tell of them themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch

from dream.adapters.keras.update.auto_recompute import Call, Chooser
from dream.adapters.keras.update.runs import Run
from dream.adapters.pytorch.update.auto_recompute import AutoRecompute, PassRecorder
from dream.collectives import Communicator

_NONE = torch.nn.Module()
"""A run has no state of its own."""


@final
class MeasuringChooser(Chooser):
    """Chooses what is computed again by measuring the first update.

    world: all ranks. calls: of the first update.
    """

    def __init__(
        self, model: Any, budget: float | str | None, world: Communicator, calls: int
    ) -> None:
        super().__init__(model)
        self._auto = AutoRecompute(budget, world, calls=calls, watch=self._watch)
        self._recorder: PassRecorder | None = None

    def trains(self, training: Any) -> bool:
        return bool(training is not False and torch.is_grad_enabled())

    def whole(self, call: Call, args: Any, kwargs: Any) -> Any:
        if self._auto.begin(self.model, self._put, lambda: bool(self.model.jit_compile)):
            return self._auto.measure(self.model, call, *args, **kwargs)
        return call(*args, **kwargs)

    def measured(self, place: int, call: Call, args: Any, kwargs: Any) -> Any:
        if self._recorder is None or not torch.is_grad_enabled():
            return call(*args, **kwargs)
        part = self.parts[place]
        block, kind = (_NONE, "Run") if isinstance(part, Run) else (part, type(part).__name__)
        with self._recorder.block(str(place), block, (args, kwargs), kind=kind):
            return call(*args, **kwargs)

    def keep(self) -> None:
        if self._recorder is not None:
            self._recorder.keep()

    @contextmanager
    def _watch(self, recorder: PassRecorder, model: Any, skips: Any) -> Iterator[None]:
        del model, skips
        self._recorder = recorder
        try:
            yield
        finally:
            self._recorder = None

    def _put(self) -> None:
        self.chosen = frozenset(map(int, self._auto.names or ()))
