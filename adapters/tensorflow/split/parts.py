"""What a step needs of a model in parts, wherever they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from dream.adapters.keras import private
from dream.adapters.tensorflow.keras_private import output_structure
from dream.adapters.tensorflow.split.cutting import Cut
from dream.adapters.tensorflow.split.piece import Values

Judge = Callable[[Any, Any], Any]
"""From the model's output and a microbatch's other half the loss, a mean over its samples."""


class Parts(ABC):
    """The parts of one model.

    copies: the rows of the mesh, which take microbatches in turn.
    trained: the variables that this process updates; alone: whether they are all.
    """

    model: Any
    cut: Cut
    copies: int
    trained: Sequence[Any]
    alone: bool

    @abstractmethod
    def gradients(
        self, inputs: Any, rest: Any, fractions: Sequence[float], judge: Judge
    ) -> tuple[Any, list[Any], list[Any]]:
        """(loss, gradients of what is trained here, outputs by microbatch, as far as they are
        here).

        inputs, rest: the batch, as many microbatches of each as there are fractions, which say
            what each counts for.
        """

    @abstractmethod
    def settle(self, optimizer: Any) -> None:
        """Make an optimizer's state, each where its variable is."""

    @abstractmethod
    def limited(self, gradients: Sequence[Any], most: float) -> list[Any]:
        """Scaled down where the whole model's gradient has a 2-norm above `most`."""

    @abstractmethod
    def spread(self) -> None:
        """After an update: all copies are alike."""

    def packed(self, values: Values) -> Any:
        """The tensors of the model's outputs in its own structure."""
        flat = [values[t] for t in self.cut.outputs]
        return private.tree.pack_sequence_as(output_structure(self.model), flat)
