"""What an adapter tells of a model: a training step without values, in the same words for every
framework. All sizes are in bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, final

from dream.tools.plan.candidates import Candidate
from dream.tools.plan.candidates import Kind as Strategy

Phase = Literal["forward", "backward", "update"]
Kind = Literal["matmul", "convolution", "other"]


@final
@dataclass(frozen=True, slots=True)
class Parameter:
    """rows: its first dim, along which it is sharded."""

    name: str
    elements: int
    rows: int
    itemsize: int
    trained: bool

    @property
    def size(self) -> int:
        return self.elements * self.itemsize


@final
@dataclass(frozen=True, slots=True)
class Op:
    """moved: what it reads and writes. call: by what an adapter makes it again elsewhere, the same
    for operations that take as long; "" where it cannot."""

    phase: Phase
    kind: Kind
    flops: int
    moved: int
    call: str = ""


@final
@dataclass(frozen=True, slots=True)
class Sketch:
    """A training step on one device with `batch` samples.

    state: the optimizer's; running: of the buffers, statistics that replicas average after each
    step. normalised: of each sum over all replicas that BatchNorms ask for. told: what replicas
    tell each other beside gradients: the loss, and what it counts.
    saved: held between forward and backward, outputs and loss among it, inputs not. The peaks
    count all but parameters, buffers and state: in forward; in backward without gradients, save
    the one that is being made; in backward with them; in the update without them. left: what of
    it is there when the update begins. largest: of the tensors that it makes.
    """

    batch: int
    parameters: tuple[Parameter, ...]
    ops: tuple[Op, ...]
    buffers: int
    running: int
    normalised: tuple[int, ...]
    told: int
    state: int
    inputs: int
    saved: int
    forward_peak: int
    backward_peak: int
    joint_peak: int
    update_peak: int
    left: int
    largest: int = 0


@final
@dataclass(frozen=True, slots=True)
class Sending:
    """`count` calls of a collective. size: bytes of the larger side. axis: the mesh's that its
    ranks lie along."""

    operation: str
    size: int
    axis: Literal["data", "model"]
    phase: Phase
    count: int = 1


@final
@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A rank's step under a strategy, run by the strategy's own code in a make-believe world.

    rank: within its copy of the model. parameters count buffers; these, gradients and state as
    they are between steps. activations: what else there is when there is most; peak: all of it.
    largest: of the tensors that it makes.
    """

    rank: int
    parameters: int
    gradients: int
    state: int
    activations: int
    peak: int
    ops: tuple[Op, ...]
    sent: tuple[Sending, ...]
    largest: int = 0


@final
@dataclass(frozen=True, slots=True)
class Told:
    """batch: of the example that came with the model, or None. framework: that trains it. kinds:
    of the strategies that can be foretold for it."""

    framework: Literal["torch", "tensorflow"]
    flavour: str
    batch: int | None
    loss: str
    kinds: tuple[Strategy, ...]


class Sketcher(ABC):
    """A model without values. Built from what the user's function gives."""

    @abstractmethod
    def told(self) -> Told: ...

    @abstractmethod
    def sketch(self, batch: int) -> Sketch:
        """A step with so many samples."""

    @abstractmethod
    def rehearse(self, candidate: Candidate, batch: int) -> list[Rehearsal] | None:
        """A candidate's step where each share of the batch has so many samples: of the ranks that
        differ, those that may need most. None for what is reckoned from a sketch. Raises what the
        strategy raises on such a model."""
