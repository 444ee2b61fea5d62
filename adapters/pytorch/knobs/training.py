"""What a strategy holds of its knobs."""

from __future__ import annotations

from typing import final

from torch.optim import Optimizer

from dream._knobs import Knobs
from dream.adapters.pytorch.knobs import gates
from dream.adapters.pytorch.knobs.clipping import Clipping
from dream.adapters.pytorch.knobs.precision import Precision
from dream.adapters.pytorch.knobs.steps import Steps
from dream.adapters.pytorch.knobs.updates import Updates
from dream.adapters.pytorch.patches import Patches


@final
class Training:
    """Changes nothing where nothing is asked for.

    updates: None where each batch is an update. precision: None for float32.
    """

    def __init__(self, knobs: Knobs, device: str) -> None:
        self.precision = Precision(knobs.precision, device) if knobs.casts else None
        self.updates = Updates(knobs.accumulate) if knobs.accumulates else None
        self._steps = (
            Steps(self.updates, Clipping(knobs)) if knobs.accumulates or knobs.clips else None
        )

    def enter(self, patches: Patches) -> None:
        """The block begins."""
        if self._steps is not None:
            patches.replace(Optimizer, "__init__", self._steps.wrap_init(Optimizer.__init__))
            if self.updates is not None:
                gates.enter(patches, self.updates, self._steps.gate_of)

    def take(self, optimizer: Optimizer) -> None:
        """An optimizer that was made before the block."""
        if self._steps is not None:
            self._steps.take(optimizer)

    @property
    def runs_models(self) -> bool:
        """Whether models are called in another way, on one device too."""
        return self.updates is not None or self.precision is not None

    def micros(self) -> int:
        """Micro-batches that a loader cuts a share into, at most."""
        return 1 if self.updates is None else self.updates.micros()
