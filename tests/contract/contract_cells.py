"""The cells of framework x strategy x reduction that the laws are held over."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from dream.strategies.spec import parse_request

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
    options: the strategy's own, as the command line writes them: "split=tensor,model=2".
    """

    kind: Kind
    strategy: str
    reduction: str
    replicas: int
    processes: int
    unavailable: str = ""
    core: bool = False
    again: bool = False
    options: str = ""

    def __str__(self) -> str:
        where = "" if self.devices is None else f"-{self.processes}_processes"
        where = "-one_process" if where and self.processes == 1 else where
        if self.options:
            size = self.replicas if where else self.processes
            return f"{self.kind}-{self.strategy}[{self.options}]-{size}{where}"
        return f"{self.kind}-{self.strategy}-{self.reduction}-{self.replicas}{where}"

    @property
    def request(self) -> dict[str, object]:
        """The strategy's own options, by name."""
        return parse_request(f"{self.strategy}:{self.options}")[1]

    @property
    def framework(self) -> str:
        return "tensorflow" if self.kind.endswith("keras_tf") else "torch"

    @property
    def devices(self) -> int | None:
        """Devices in each process, where that is not the default."""
        if self.processes >= self.replicas:
            return None
        return self.replicas // self.processes

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
    """On one host, where a leader has nobody to meet; two hosts are in tests/collectives."""
    cells = _over(kind, "mirrored", "hierarchical")
    return [replace(cell, core=True, again=True) for cell in cells]


def _named(kind: Kind, strategy: str, reduction: str) -> list[Cell]:
    """A further name for what other cells run; in torch, where a case is quick, 2 ranks of it run
    always."""
    cells = _over(kind, strategy, reduction)
    return [replace(c, core=True, again=c.again or kind != "torch") for c in cells]


def _split(strategy: str, options: str, ranks: int, *, copies: int = 0) -> Cell:
    """A model in parts. copies: how many share a batch; every rank by default. Two ranks are run
    always and with all cases; more are left to `make exhaustive`, with the core of those that a
    model in place has, and all of a pipeline's, which are few."""
    more = ranks > 2
    core = more and "split=pipeline" not in options
    return Cell(
        "torch", strategy, "auto", copies or ranks, ranks, again=more, core=core, options=options
    )


def _alone(strategy: str, options: str, copies: int) -> Cell:
    """One process, many devices. More than two copies repeat what two show."""
    return Cell("torch", strategy, "auto", copies, 1, again=copies > 2, options=options)


TORCH_SPLIT: list[Cell] = [
    *(_alone("data_parallel", "", devices) for devices in (2, 3)),
    replace(_alone("model_parallel", "split=layers,model=2", 1), again=True),
    _alone("model_parallel", "split=layers,model=2,data=2,devices=4", 2),
    _split("model_parallel", "split=pipeline", 2, copies=1),
    _split("model_parallel", "split=pipeline,schedule=gpipe", 4, copies=1),
    replace(
        _split("model_parallel", "split=pipeline,schedule=interleaved", 2, copies=1), again=True
    ),
    _split("hybrid", "split=pipeline,data=2,model=2", 4, copies=2),
    *(_split("sharded", f"zero={zero}", 2) for zero in (1, 3)),
    replace(_split("sharded", "zero=2", 2), core=True, again=True),
    _split("sharded", "zero=3", 4),
    *(_split("sharded", f"zero={zero},data=2", 4) for zero in (1, 3)),
    _split("model_parallel", "split=tensor", 2, copies=1),
    _split("hybrid", "split=tensor,data=2,model=2", 4, copies=2),
]
TORCH: list[Cell] = [
    *(replace(cell, again=False) for cell in _over("torch", "mirrored", "gloo")),
    *_over("torch", "mirrored", "shared_memory"),
    *_hierarchical("torch"),
    *_named("torch", "multi_worker_mirrored", "gloo"),
    *_over("torch", "horovod", "auto"),
    *_named("torch", "mirrored", "horovod"),
    *_nccl("torch", "mirrored"),
    *_nccl("torch", "multi_worker_mirrored"),
    *TORCH_SPLIT,
]


def _split_keras(
    strategy: str, options: str, *, full: bool, copies: int = 2, devices: tuple[int, ...] = (2,),
    cut: str = "",
) -> list[Cell]:  # fmt: skip
    """2 processes, which are run always; and one process with so many devices, which
    `make exhaustive` runs, since tests/adapters/tensorflow/parallel holds them in smaller. copies:
    how many of the processes share a batch. cut: has one process cut batches too."""
    across = Cell("keras_tf", strategy, "auto", copies, 2, core=True, options=options)
    return [
        across,
        *(
            Cell("keras_tf", strategy, "auto", n, 1, core=n > 2 or not full, again=True,
                 options=options + cut)
            for n in devices
        ),
    ]  # fmt: skip


def _keras_rows(split: str, processes: int, *, copies: int) -> Cell:
    options = f"split={split},model=2"
    return Cell(
        "keras_tf", "hybrid", "auto", copies, processes, core=True, again=True, options=options
    )


KERAS_TF: list[Cell] = [
    *(Cell("keras_tf", "mirrored", "auto", n, 1, core=n > 2, again=n > 2) for n in (2, 3)),
    *(Cell("keras_tf", "data_parallel", "auto", n, 1, core=True, again=n > 2) for n in (2, 3)),
    *_split_keras("sharded", "", full=True, devices=(2, 4)),
    *_split_keras("sharded", "zero=1", full=False)[1:],
    *_split_keras("model_parallel", "split=tensor", full=True),
    *_split_keras(
        "model_parallel",
        "split=pipeline",
        full=True,
        copies=1,
        devices=(2, 4),
        cut=",microbatches=4",
    ),
    *_split_keras("model_parallel", "split=layers", full=False, copies=1)[1:],
    _keras_rows("tensor", 1, copies=4),
    _keras_rows("pipeline", 1, copies=4),
    _keras_rows("pipeline", 4, copies=2),
    *_over("keras_tf", "mirrored", "shared_memory"),
    *_hierarchical("keras_tf"),
    *_beside("keras_tf", "mirrored", "grpc"),
    *_named("keras_tf", "multi_worker_mirrored", "grpc"),
    Cell("keras_tf", "multi_worker_mirrored", "shared_memory", 4, 2, core=True),
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
