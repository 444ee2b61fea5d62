"""The cells of framework x strategy x reduction that the laws are held over."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

Kind = Literal["torch", "keras_tf", "keras_torch", "raw_torch", "raw_keras_tf"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to train.

    kind: which cases it runs: native loops in torch, or Keras on a backend.
    replicas: how many share a global batch. processes: how many ranks there are.
    unavailable: why it cannot run here; empty where it can.
    core: it runs the core of its cases only, since another cell of the same adapter and
        reduction runs them all.
    again: a further name for what other cells run at as many ranks; left to `make exhaustive`.
    """

    kind: Kind
    strategy: str
    reduction: str
    replicas: int
    processes: int
    unavailable: str = ""
    core: bool = False
    again: bool = False

    def __str__(self) -> str:
        where = "" if self.processes == self.replicas else "-one_process"
        return f"{self.kind}-{self.strategy}-{self.reduction}-{self.replicas}{where}"

    @property
    def framework(self) -> str:
        return "tensorflow" if self.kind.endswith("keras_tf") else "torch"

    @property
    def devices(self) -> int | None:
        """Devices in each process, where that is not the default."""
        return self.replicas if self.processes < self.replicas else None

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Cell:
        return cls(**json.loads(text))


def _gpus() -> int:
    return len([*Path("/dev").glob("nvidia[0-9]*")])


def _nccl(kind: Kind, strategy: str) -> list[Cell]:
    """NCCL adds up CUDA tensors, on one GPU for each rank."""
    return [
        Cell(kind, strategy, "nccl", n, n, core=n > 2)
        if _gpus() >= n
        else Cell(kind, strategy, "nccl", n, n, f"NCCL needs {n} GPUs, and {_gpus()} are here")
        for n in (2, 3)
    ]


def _over(kind: Kind, strategy: str, reduction: str) -> list[Cell]:
    """2 and 3 ranks, each with all cases; 3 are left to `make exhaustive`."""
    return [Cell(kind, strategy, reduction, n, n, again=n > 2) for n in (2, 3)]


def _beside(kind: Kind, strategy: str, reduction: str) -> list[Cell]:
    """2 ranks with the core of the cases, beside a cell that runs them all; 3 with all."""
    first, second = _over(kind, strategy, reduction)
    return [replace(first, core=True), second]


def _hierarchical(kind: Kind) -> list[Cell]:
    """On one host, where a leader has nobody to meet; two hosts are in tests/communication."""
    cells = _over(kind, "mirrored", "hierarchical")
    return [replace(cell, core=True, again=True) for cell in cells]


def _named(kind: Kind, strategy: str, reduction: str) -> list[Cell]:
    """A further name for what other cells run."""
    again = kind != "torch"
    return [replace(c, core=True, again=again) for c in _over(kind, strategy, reduction)]


TORCH: list[Cell] = [
    *(replace(cell, again=False) for cell in _over("torch", "mirrored", "gloo")),
    *_over("torch", "mirrored", "shared_memory"),
    *_hierarchical("torch"),
    *_named("torch", "multi_worker_mirrored", "gloo"),
    *_over("torch", "horovod", "auto"),
    *_named("torch", "mirrored", "horovod"),
    *_nccl("torch", "mirrored"),
    *_nccl("torch", "multi_worker_mirrored"),
]
KERAS_TF: list[Cell] = [
    *(Cell("keras_tf", "mirrored", "auto", n, 1, core=n > 2, again=n > 2) for n in (2, 3)),
    *_over("keras_tf", "mirrored", "shared_memory"),
    *_hierarchical("keras_tf"),
    *_beside("keras_tf", "mirrored", "grpc"),
    *_named("keras_tf", "multi_worker_mirrored", "grpc"),
    *_beside("keras_tf", "horovod", "auto"),
    *_named("keras_tf", "mirrored", "horovod"),
    *_nccl("keras_tf", "mirrored"),
    *_nccl("keras_tf", "multi_worker_mirrored"),
]
KERAS_TORCH: list[Cell] = [
    *_over("keras_torch", "mirrored", "shared_memory"),
    *_hierarchical("keras_torch"),
    *_beside("keras_torch", "mirrored", "gloo"),
    *_named("keras_torch", "multi_worker_mirrored", "gloo"),
    *_beside("keras_torch", "horovod", "auto"),
    *_nccl("keras_torch", "mirrored"),
]


def oracle(kind: Kind) -> Cell:
    """One device: plain framework code first, then the same under `single`."""
    return Cell(kind, "single", "auto", 1, 1)
