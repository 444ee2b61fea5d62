"""The strategies that N devices can run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import isqrt
from typing import Literal, final, get_args

from dream._mesh import Mesh

Kind = Literal["single", "mirrored", "sharded", "tensor", "pipeline"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """kind: what becomes of a copy of the model; mesh: copies x parts. zero: of sharded.
    microbatches: of a pipeline, else 1. several_hosts: whether the copies are on several."""

    kind: Kind
    mesh: Mesh
    zero: int = 0
    microbatches: int = 1
    several_hosts: bool = False

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
            return f"sharded:zero={self.zero}{data}"
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
            return f"sharded, zero {self.zero}"
        if self.kind in ("single", "mirrored"):
            return self.request
        mesh = f"hybrid {self.mesh.data} x {self.mesh.model}, " if self.mesh.data > 1 else ""
        return f"{mesh}{self.kind}"


def candidates(devices: int, per_host: int, batch: int, kinds: Collection[Kind]) -> list[Candidate]:
    """Those of some kinds that fit so many devices and a global batch."""
    found = [Candidate("single", Mesh(1, 1))]
    if devices == 1:
        return found
    far = devices > per_host
    if batch >= devices:
        found.append(Candidate("mirrored", Mesh(devices, 1), several_hosts=far))
        found += [Candidate("sharded", Mesh(1, devices), zero=zero) for zero in (1, 2, 3)]
    for parts in _divisors(devices):
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
    """A candidate whose ranks do the same: what is done along the data axis is the same for any
    number of copies beyond one."""
    copies = min(one.mesh.data, 2)
    return replace(one, mesh=Mesh(copies, one.mesh.model), several_hosts=False)
