"""Keras on torch: its room is entered once Keras is imported, in the block or before it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, final

from dream._adapter import Plan, Step
from dream._framework import ImportWatch
from dream._registry import load
from dream.adapters.pytorch.compression.exchange import Exchanged
from dream.collectives import Communicator


@final
class KerasEntry:
    """Opens and closes the Keras room along with the block. opener: what makes it. exchanged: how
    gradients become one, where that is not their mean."""

    def __init__(
        self,
        plan: Plan,
        communicator: Communicator,
        opener: str = "dream.adapters.pytorch.keras.block:open_block",
        exchanged: Exchanged | None = None,
    ) -> None:
        self._opener, self._exchanged = opener, exchanged
        self._plan = plan
        self._communicator = communicator
        self._watch = ImportWatch(self._found)
        self._block: Any = None
        self._open = False

    def enter(self) -> None:
        if "keras" in sys.modules:
            self._found()
        else:
            self._watch.install()

    def exit(self) -> None:
        self._watch.remove()
        if self._open:
            self._open = False
            self._block.exit()

    def prepare(self, item: Any) -> Any | None:
        """The Keras object distributed, or None where it is none of Keras's."""
        if self._block is None or not self._block.takes(item):
            return None
        return self._block.prepare(item)

    def train_step(
        self,
        model: Any,
        loss: Callable[..., Any],
        optimizer: Any,
        weight: Callable[..., Any] | None,
    ) -> Step | None:
        """The explicit step of an optimizer of Keras's, or None where it is none of them."""
        if self._block is None or not self._block.takes(optimizer):
            return None
        build = load("dream.adapters.pytorch.keras.step:keras_step")
        step: Step = build(self._block.engine, model, loss, optimizer, weight)
        return step

    def _found(self) -> None:
        if "keras" not in sys.modules or sys.modules["keras"].backend.backend() != "torch":
            return
        if self._block is None:
            self._block = load(self._opener)(self._plan, self._communicator)
            if self._exchanged is not None:
                in_keras = load("dream.adapters.pytorch.keras.exchange:InKeras")
                self._block.engine.exchange = in_keras(self._exchanged)
        self._open = True
        self._block.enter()
