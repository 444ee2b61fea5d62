"""List the strategies that N devices can run, and describe a training step without values in the
same words for every framework. All sizes are in bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, replace
from math import isqrt
from typing import Literal, final, get_args

from dream._topology import Mesh

StrategyKind = Literal["single", "mirrored", "sharded", "tensor", "pipeline"]
STRATEGY_KINDS: tuple[StrategyKind, ...] = get_args(StrategyKind)


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """A strategy with its settings, which a plan may choose.

    kind: what becomes of a copy of the model; mesh: copies x parts. zero: of sharded.
    microbatches: of a pipeline, else 1. several_hosts: whether the copies are on several. offload:
    whether shards lie on the host.
    """

    kind: StrategyKind
    mesh: Mesh
    zero: int = 0
    microbatches: int = 1
    several_hosts: bool = False
    offload: bool = False

    @property
    def devices(self) -> int:
        return self.mesh.size

    @property
    def split(self) -> bool:
        """Whether a copy of the model is."""
        return self.kind in ("tensor", "pipeline")

    @property
    def shares(self) -> int:
        """How many parts a global batch is dealt out in."""
        return self.mesh.size if self.kind == "sharded" else self.mesh.data

    @property
    def request(self) -> str:
        """As `dream run --strategy` takes it."""
        if self.kind == "single":
            return "single"
        if self.kind == "mirrored":
            return "multi_worker_mirrored" if self.several_hosts else "mirrored"
        if self.kind == "sharded":
            data = f",data={self.mesh.data}" if self.mesh.data > 1 else ""
            return f"sharded:zero={self.zero}{data}{',cpu_offload=true' * self.offload}"
        parts = f"split={self.kind},model={self.mesh.model}"
        more = f",microbatches={self.microbatches}" if self.kind == "pipeline" else ""
        if self.mesh.data == 1:
            return f"model_parallel:{parts}{more}"
        return f"hybrid:data={self.mesh.data},{parts}{more}"

    @property
    def strategy(self) -> str:
        """The same whatever the mesh."""
        return f"{self.kind} {self.zero}" if self.kind == "sharded" else self.kind

    @property
    def label(self) -> str:
        """For people."""
        if self.kind == "sharded":
            groups = f"hybrid {self.mesh.data} x {self.mesh.model}, " if self.mesh.data > 1 else ""
            return f"{groups}sharded, zero {self.zero}{', cpu_offload' * self.offload}"
        if self.kind in ("single", "mirrored"):
            return self.request
        mesh = f"hybrid {self.mesh.data} x {self.mesh.model}, " if self.mesh.data > 1 else ""
        return f"{mesh}{self.kind}"


def candidates(
    devices: int,
    per_host: int,
    batch: int,
    kinds: Collection[StrategyKind],
    *,
    offloads: bool = False,
) -> list[Candidate]:
    """Return those of some kinds that fit so many devices and a global batch. offloads: whether
    devices have a host whose memory is not theirs."""
    found = [Candidate("single", Mesh(1, 1))]
    if devices > 1 and batch >= devices:
        far = devices > per_host
        found.append(Candidate("mirrored", Mesh(devices, 1), several_hosts=far))
        found += [Candidate("sharded", Mesh(1, devices), zero=zero) for zero in (1, 2, 3)]
        if far and per_host > 1 and devices % per_host == 0:  # hybrid shards: a host holds all
            hosts = Mesh(devices // per_host, per_host)
            found.append(Candidate("sharded", hosts, zero=3, several_hosts=True))
    if offloads and batch >= devices:
        found.append(Candidate("sharded", Mesh(1, devices), zero=3, offload=True))
    for parts in _divisors(devices) if devices > 1 else ():
        mesh = Mesh(devices // parts, parts)
        if batch < mesh.data:
            continue
        found.append(Candidate("tensor", mesh))
        microbatches = _microbatches(batch // mesh.data, parts)
        if microbatches >= parts:
            found.append(Candidate("pipeline", mesh, microbatches=microbatches))
    known = [one for one in found if one.kind in kinds]
    return sorted(known, key=lambda one: one.split and one.mesh.data > 1)


def _microbatches(batch: int, stages: int) -> int:
    """Twice the stages, or fewer where the batch is small, as dream's pipeline has them."""
    return max((m for m in range(1, min(2 * stages, batch) + 1) if batch % m == 0), default=1)


def _divisors(devices: int) -> list[int]:
    small = [parts for parts in range(1, isqrt(devices) + 1) if devices % parts == 0]
    return sorted({*small[1:], *(devices // parts for parts in small)})


def like(one: Candidate) -> Candidate:
    """Return a candidate whose ranks do the same: what is done along the data axis is the same for
    any number of copies beyond one, and so is it wherever shards lie. A device
    alone that has them on its host does what each of two does."""
    copies = min(one.mesh.data, 2)
    mesh = Mesh(1, 2) if one.offload and one.devices == 1 else Mesh(copies, one.mesh.model)
    return replace(one, mesh=mesh, several_hosts=False, offload=False)


Phase = Literal["forward", "backward", "update"]
Kind = Literal["matmul", "convolution", "other"]


@final
@dataclass(frozen=True, slots=True)
class SketchedParameter:
    """A parameter without values.

    rows: its first dim, along which it is sharded.
    """

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
class SketchedOp:
    """An operation of a step, by what it computes and moves.

    moved: what it reads and writes. call: by what an adapter makes it again elsewhere, the same
    for operations that take as long; "" where it cannot.
    """

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
    parameters: tuple[SketchedParameter, ...]
    ops: tuple[SketchedOp, ...]
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
    largest: of the tensors that it makes. working: what there is at most, beside parameters,
    gradients and state, before the update.
    """

    rank: int
    parameters: int
    gradients: int
    state: int
    activations: int
    peak: int
    ops: tuple[SketchedOp, ...]
    sent: tuple[Sending, ...]
    largest: int = 0
    working: int = 0


@final
@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model before anything is foretold.

    batch: of the example that came with the model, or None. framework: that trains it. kinds:
    of the strategies that can be foretold for it.
    """

    framework: Literal["torch", "tensorflow"]
    flavour: str
    batch: int | None
    loss: str
    kinds: tuple[StrategyKind, ...]


class Sketcher(ABC):
    """A model without values. Built from what the user's function gives."""

    @abstractmethod
    def told(self) -> ModelFacts: ...

    @abstractmethod
    def sketch(self, batch: int) -> Sketch:
        """Sketch a step with so many samples."""

    @abstractmethod
    def rehearse(self, candidate: Candidate, batch: int) -> list[Rehearsal] | None:
        """Rehearse a candidate's step where each share of the batch has so many samples: of the
        ranks that differ, those that may need most. None for what is reckoned from a sketch. Raises
        what the strategy raises on such a model."""
