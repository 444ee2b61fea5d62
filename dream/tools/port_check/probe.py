"""What an adapter can tell of a model of its framework: the same words for every framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from numpy.typing import NDArray

from dream.tools.port_check.description import Description
from dream.tools.port_check.loss import Loss

Array = NDArray[Any]
Inputs = Mapping[str, Array]
"""By name, as in the batch's file: `x`; or `x0`, `x1`, ... for several by position; or the names
that the model gives them."""


@final
@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a model before anything is compared.

    between: by a layer's name, what without parameters was called since the layer before it;
        "" for what came after the last.
    dropouts: the rates of the dropout layers, in order.
    given: the shapes that the inputs were given in.
    backend: Keras's, else the framework.
    """

    description: Description
    between: Mapping[str, list[str]]
    dropouts: list[float]
    given: Mapping[str, tuple[int, ...]]
    backend: str


@final
@dataclass(frozen=True, slots=True)
class Passes:
    """A forward and a backward pass without training.

    given, gave: by layer, canonical: channels last, batch first; before a layer's own activation.
    gradients: by layer and role, canonical; None where none flows.
    """

    outputs: list[Array]
    loss: float
    given: dict[str, Array] = field(default_factory=dict)
    gave: dict[str, Array] = field(default_factory=dict)
    gradients: dict[str, dict[str, Array | None]] = field(default_factory=dict)


class Probe(ABC):
    """A model with a batch of inputs."""

    @abstractmethod
    def facts(self) -> Facts: ...

    @abstractmethod
    def read(self) -> dict[str, Array]:
        """All parameters and buffers, by name, in the framework's layout."""

    @abstractmethod
    def write(self, arrays: Mapping[str, Array]) -> None:
        """The inverse, for those named."""

    @abstractmethod
    def passes(self, loss: Loss) -> Passes:
        """Run the model on the batch, forward and backward."""
