"""What an adapter tells of a model: a training step without values, in the same words for every
framework. All sizes are in bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final

Phase = Literal["forward", "backward", "update"]
Kind = Literal["matmul", "convolution", "other"]
WHOLE = -1
"""The cut of what tensor parallelism leaves whole."""


@final
@dataclass(frozen=True, slots=True)
class Parameter:
    """layer: the layer that holds it. rows: its first dim, along which it is sharded. cut: the
    place of its block in `Sketch.cuts`, or WHOLE."""

    name: str
    layer: str
    elements: int
    rows: int
    itemsize: int
    trained: bool
    cut: int = WHOLE

    @property
    def size(self) -> int:
        return self.elements * self.itemsize


@final
@dataclass(frozen=True, slots=True)
class Layer:
    """What was called. unit: the stage of a pipeline takes a unit whole, and sharding gathers it
    whole. saved: what the forward pass makes in it and backward needs."""

    name: str
    kind: str
    unit: str
    saved: int


@final
@dataclass(frozen=True, slots=True)
class Cut:
    """Layers that tensor parallelism divides, from the column-cut to the row-cut one. size: what
    the number of devices must divide. saved: of theirs, divided too. forward, backward: what is
    added up over the devices in each pass."""

    size: int
    saved: int
    forward: int
    backward: int


@final
@dataclass(frozen=True, slots=True)
class Op:
    """moved: what it reads and writes. unit, cut: in forward; backward follows it."""

    phase: Phase
    kind: Kind
    flops: int
    moved: int
    unit: str
    cut: int = WHOLE


@final
@dataclass(frozen=True, slots=True)
class Sketch:
    """A training step on one device with `batch` samples.

    units: in the order of their calls, with what goes out of each; state: the optimizer's;
    running: of the buffers, statistics that replicas average after each step.
    saved: held between forward and backward, outputs and loss among it, inputs not. The peaks
    count all but parameters, buffers and state: in forward; in backward without gradients, save
    the one that is being made; in backward with them; in the update without them. left: what of
    it is there when the update begins.
    """

    batch: int
    parameters: tuple[Parameter, ...]
    layers: tuple[Layer, ...]
    units: Mapping[str, int]
    cuts: tuple[Cut, ...]
    ops: tuple[Op, ...]
    buffers: int
    running: int
    state: int
    inputs: int
    saved: int
    forward_peak: int
    backward_peak: int
    joint_peak: int
    update_peak: int
    left: int


@final
@dataclass(frozen=True, slots=True)
class Told:
    """batch: of the example that came with the model, or None. framework: that trains it."""

    framework: Literal["torch", "tensorflow"]
    flavour: str
    batch: int | None
    loss: str


class Sketcher(ABC):
    """A model without values. Built from what the user's function gives."""

    @abstractmethod
    def told(self) -> Told: ...

    @abstractmethod
    def sketch(self, batch: int) -> Sketch:
        """A step with so many samples."""
