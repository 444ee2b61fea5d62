"""What a step needs of a model in parts, wherever they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from dream.adapters.keras import private, recompute
from dream.adapters.keras.engine import Engine
from dream.adapters.tensorflow.parallel.split.cutting import Cut
from dream.adapters.tensorflow.parallel.split.piece import Values
from dream.update.update import Knobs

Judge = Callable[[Any, Any], Any]
"""From the model's output and a microbatch's other half the loss, a mean over its samples."""


class Parts(ABC):
    """The parts of one model.

    copies: the rows of the mesh, which take microbatches in turn.
    trained: the variables that this process updates.
    """

    model: Any
    cut: Cut
    copies: int
    trained: Sequence[Any]

    @abstractmethod
    def run(
        self, inputs: Any, rest: Any, fractions: Sequence[float], judge: Judge
    ) -> tuple[Any, list[Any]]:
        """Forward and back, gradients staying in the parts. (Loss, outputs by microbatch, as far
        as they are here.)

        inputs, rest: as many microbatches of each as there are fractions, which say what each
            counts for.
        """

    @abstractmethod
    def summed(self, losses: Sequence[Any]) -> tuple[Any, list[Any]]:
        """(loss, gradients of what is trained here) of all runs since the last call. losses: what
        they gave."""

    @abstractmethod
    def settle(self, optimizer: Any) -> None:
        """Make an optimizer's state, each where its variable is."""

    @abstractmethod
    def limited(
        self, gradients: list[Any], optimizer: Any, knobs: Knobs, scale: float
    ) -> list[Any]:
        """Clipped as far as the optimizer cannot, which knows only what is here. scale: what the
        gradients are multiplied by."""

    @abstractmethod
    def finite(self, gradients: Sequence[Any]) -> Any:
        """Whether the whole model's gradient is."""

    def recompute(self, engine: Engine) -> None:
        """Have backward compute again what was asked for; a square root is that of each part."""
        if engine.knobs.recompute == "sqrt":
            for part in self.cut.parts:
                recompute.adopt(part.model, engine)
        else:
            recompute.adopt(self.model, engine)

    @abstractmethod
    def spread(self) -> None:
        """After an update: all copies are alike."""

    def packed(self, values: Values) -> Any:
        """The tensors of the model's outputs in its own structure."""
        flat = [values[t] for t in self.cut.outputs]
        return private.tree.pack_sequence_as(private.output_structure(self.model), flat)
