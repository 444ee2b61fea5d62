"""What a strategy holds of its knobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import final

from torch import nn
from torch.optim import Optimizer

from dream.adapters.pytorch.patches import Patches
from dream.adapters.pytorch.update import gates
from dream.adapters.pytorch.update.clipping import Clipping
from dream.adapters.pytorch.update.masters import Masters
from dream.adapters.pytorch.update.precision import Precision
from dream.adapters.pytorch.update.scaling import Scaling
from dream.adapters.pytorch.update.spread import Spread
from dream.adapters.pytorch.update.steps import Steps
from dream.adapters.pytorch.update.updates import Updates
from dream.update.precision import PRECISIONS
from dream.update.update import Knobs


@final
class Training:
    """Changes nothing where nothing is asked for.

    updates: None where each batch is an update. precision: None for float32. scaling: None where
    the loss is not scaled.
    """

    def __init__(self, knobs: Knobs, device: str, ranks: int, spread: Spread) -> None:
        """ranks: those that share a batch. spread: of the gradients that optimizers step on."""
        row = PRECISIONS[knobs.precision]
        self.updates = Updates(knobs.accumulate) if knobs.accumulates else None
        self.scaling = Scaling(ranks, spread) if row.scales else None
        masters = Masters() if row.master else None
        self.precision = Precision(row, device, masters, self.scaling) if knobs.casts else None
        acts = knobs.accumulates or knobs.clips or row.scales
        self._steps = (
            Steps(self.updates, Clipping(knobs, spread), self.scaling, masters) if acts else None
        )
        self._recomputes = knobs.recompute

    def watch(
        self, called: Callable[[], bool], trained: Callable[[], Iterable[nn.Parameter]]
    ) -> None:
        """called: whether a model of the strategy's was called in training since the last
        backward. trained: the parameters that those models gather gradients in."""
        if self.scaling is None:
            return
        assert self._steps is not None
        stepped = self._steps.parameters

        def parameters() -> list[nn.Parameter]:
            return [*{id(p): p for p in (*trained(), *stepped())}.values()]

        self.scaling.called = called
        self.scaling.parameters = parameters
        if self.updates is not None:
            self.scaling.changed = self.updates.held.renote

    def enter(self, patches: Patches) -> None:
        """The block begins."""
        if self._steps is not None:
            patches.replace(Optimizer, "__init__", self._steps.wrap_init(Optimizer.__init__))
            if self.updates is not None or self.scaling is not None:
                gates.refuse_scalers(patches)
            if self.updates is not None:
                gates.enter(patches, self.updates, self._steps.gate_of)
        if self.scaling is not None:
            self.scaling.enter(patches)

    def exit(self) -> None:
        """The block ends."""
        if self.scaling is not None:
            self.scaling.exit()

    def take(self, optimizer: Optimizer) -> None:
        """An optimizer that was made before the block."""
        if self._steps is not None:
            self._steps.take(optimizer)

    @property
    def most(self) -> int:
        """Micro-batches to an update, at most."""
        return 1 if self.updates is None else self.updates.most

    @property
    def runs_models(self) -> bool:
        """Whether models are called in another way, on one device too."""
        return bool(self.updates is not None or self.precision is not None or self._recomputes)

    def micros(self) -> int:
        """Micro-batches that a loader cuts a share into, at most."""
        return 1 if self.updates is None else self.updates.micros()
