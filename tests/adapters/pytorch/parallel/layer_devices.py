"""One process that drives several devices. Usage: layer_devices.py FILE"""

from __future__ import annotations

import pickle
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import dream
from dream.torch import gather, parallel_apply, replicate, scatter

Figures = dict[str, Any]
CPUS = ["cpu"] * 3


def strategy(name: str, **options: Any) -> dream.Strategy:
    return dream.strategy(name, framework="torch", **options)


def deep() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4))


def batch(rows: int = 13) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(rows, 8, generator=draw), torch.arange(rows) % 4


def apart(model: nn.Module, other: nn.Module, *, gradients: bool = False) -> float:
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    both = ((a.grad, b.grad) if gradients else (a, b) for a, b in pairs)
    return max(float((a - b).detach().abs().max()) for a, b in both)  # type: ignore[operator]


def primitives() -> Figures:
    """By hand, as torch's documentation of DataParallel puts them together."""
    (x, y), model, one = batch(), deep(), deep()
    F.cross_entropy(one(x), y).backward()
    replicas = replicate(model, CPUS)
    parts = scatter((x, {"y": y, "note": "kept"}), CPUS)
    outputs = parallel_apply(replicas, [(part[0],) for part in parts], CPUS)
    F.cross_entropy(gather(outputs, CPUS[0]), y).backward()
    scalars = gather([torch.tensor(1.0), torch.tensor(2.0)], CPUS[0])
    with torch.no_grad():
        detached = replicate(model, CPUS[:2])
    return {
        "sizes": [len(part[0]) for part in parts],
        "notes": [part[1]["note"] for part in parts],
        "few": len(scatter((x[:2],), CPUS)),
        "gradients": apart(model, one, gradients=True),
        "scalars": scalars.tolist(),
        "own": all(p.is_leaf for p in detached[0].parameters()),
        "error": _refused(lambda: parallel_apply([_fails] * 2, [(1,), (2,)], CPUS)),
        "rows": _refused(lambda: scatter((x, y[:3]), CPUS)),
    }


def _fails(number: int) -> None:
    raise KeyError(number)


class Meter(TorchDispatchMode):
    """Bytes of the tensors that each device's thread has made and that are still alive.

    Devices of one process are threads here; what the main thread makes is the first one's. Backward
    passes are not looked at: devices of a CPU share one thread for them, where GPUs have their own.
    """

    live: defaultdict[str, int] = defaultdict(int)
    peak: defaultdict[str, int] = defaultdict(int)
    lock = threading.Lock()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if _is(x)}
        out = func(*args, **(kwargs or {}))
        if torch._C._current_graph_task_id() != -1:
            return out
        name = threading.current_thread().name
        device = name.rpartition("_")[0] if name.startswith("dream-device") else "dream-device-0"
        for x in tree_leaves(out):
            if _is(x) and x.untyped_storage().data_ptr() not in given:
                storage = x.untyped_storage()
                self.count(device, storage.nbytes())
                weakref.finalize(storage, self.count, device, -storage.nbytes())
        return out

    @classmethod
    def count(cls, device: str, size: int) -> None:
        with cls.lock:
            cls.live[device] += size
            cls.peak[device] = max(cls.peak[device], cls.live[device])


def _is(x: object) -> bool:
    return isinstance(x, torch.Tensor)


class Wide(nn.Module):
    """Small inputs, small weights, and outputs that fill the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with Meter():
            return self.inner(x).repeat(1, 4000)


def _spread(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    with Meter():
        return (output.mean(dim=1) - target).square().mean()


def memory() -> Figures:
    """Peaks of both devices: the step, and the user's loop, which gathers outputs as torch's
    DataParallel does."""
    x, y = torch.randn(64, 8), torch.randn(64)
    found: Figures = {}
    for way in ("step", "loop"):
        with strategy("data_parallel", devices=2) as made:
            model = Wide()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            step = made.train_step(model, _spread, optimizer)
            if way == "loop":
                model(x)  # the first call looks whether samples are independent
            Meter.live.clear()
            Meter.peak.clear()
            with Meter():
                if way == "step":
                    step(x, y)
                else:
                    _spread(model(x), y).backward()
        found[way] = [Meter.peak[f"dream-device-{index}"] for index in range(2)]
    return found


class Meeting(torch.autograd.Function):
    """Waits for the other branch, forwards and backwards, and notes whether it came and on which
    thread."""

    notes: dict[str, tuple[bool, str]] = {}
    both: dict[str, threading.Barrier] = {}
    """Of each pass; none where there are no threads."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, name: str) -> torch.Tensor:
        ctx.name = name
        Meeting.note(f"{name} forward")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        Meeting.note(f"{ctx.name} backward")
        return gradient.clone(), None

    @staticmethod
    def note(name: str) -> None:
        both = Meeting.both.get(name.split()[1])
        try:
            met = both is not None and both.wait(60) >= 0
        except threading.BrokenBarrierError:
            met = False
        Meeting.notes[name] = met, threading.current_thread().name


class Branch(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.inner = name, nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Meeting.apply(self.inner(x), self.name)


class Fork(nn.Module):
    """Two branches that know nothing of each other, and a head on both."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = Branch("left"), Branch("right"), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.left(x)) + self.right(x))


def overlap() -> Figures:
    """What both branches noted, by the loop and by the step; and the difference from one device."""
    x, y = batch()
    found: Figures = {}
    for way in ("loop", "step"):
        torch.manual_seed(0)
        one = Fork()
        place = {"left": 0, "right": 1, "head": 0}
        with strategy("model_parallel", split="layers", place=place) as made:
            torch.manual_seed(0)
            model = Fork()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            step = made.train_step(model, F.cross_entropy, optimizer)
            for _ in range(2):
                model(x)  # these run in turn, and show that it draws nothing
            Meeting.notes = {}
            Meeting.both = {pass_: threading.Barrier(2) for pass_ in ("forward", "backward")}
            if way == "loop":
                F.cross_entropy(model(x), y).backward()
            else:
                step(x, y)
            notes = dict(Meeting.notes)
        Meeting.both = {}
        F.cross_entropy(one(x), y).backward()
        found[way] = {"notes": notes, "apart": apart(model, one, gradients=True)}
    return found


class Textbook(nn.Module):
    """x -> a matrix on device 0 -> a bias on device 1."""

    def __init__(self) -> None:
        super().__init__()
        self.matmul, self.add = nn.Linear(8, 4, bias=False), Shift()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.add(self.matmul(x))


class Shift(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias, self.threads = nn.Parameter(torch.zeros(4)), SimpleQueue[str]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.threads.put(threading.current_thread().name)  # a list would have it run on one device
        return x + self.bias


def rows() -> Figures:
    """The textbook's picture in two rows side by side, with a norm to clip to."""
    x, y = batch()
    place = {"matmul": 0, "add": 1}
    torch.manual_seed(0)
    one = Textbook()
    other = torch.optim.SGD(one.parameters(), lr=0.1)
    with strategy("model_parallel", split="layers", place=place, data=2, clip_norm=0.1) as made:
        torch.manual_seed(0)
        model = Textbook()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = made.train_step(model, F.cross_entropy, optimizer)
        for turn in range(6):
            other.zero_grad()
            F.cross_entropy(one(x), y).backward()
            nn.utils.clip_grad_norm_(one.parameters(), 0.1)
            other.step()
            if turn % 2:
                step(x, y)
            else:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
    names = [model.add.threads.get() for _ in range(model.add.threads.qsize())]
    threads = {name.rpartition("_")[0] for name in names if "device" in name}
    return {"apart": apart(model, one), "threads": sorted(threads)}


def sequences_first() -> Figures:
    """What has its samples along dim 1 runs whole, and right, in the user's loop."""
    torch.manual_seed(0)
    one = nn.LSTM(8, 4)
    x = torch.randn(6, 5, 8)
    with strategy("data_parallel", devices=2):
        torch.manual_seed(0)
        model = nn.LSTM(8, 4)
        model(x)[0].square().mean().backward()
    one(x)[0].square().mean().backward()
    return {"apart": apart(model, one, gradients=True)}


def refusals() -> Figures:
    def layers(**options: Any) -> dream.Strategy:
        return strategy("model_parallel", split="layers", **options)

    acts: dict[str, Callable[[], object]] = {
        "name": lambda: layers(place={"4": 0, "head": 1}).prepare(deep()),
        "left_out": lambda: layers(place={"0": 0, "4": 1}).prepare(deep()),
        "index": lambda: layers(place={"0": 0, "2": 1, "4": 2}, model=2).prepare(deep()),
        "kind": lambda: layers(place={"0": "cpu"}).prepare(deep()),
        "mesh": lambda: layers(devices=3, data=2, model=2).prepare(deep()),
        "several": partial(_ranks_of_one, "data_parallel"),
    }
    return {name: _refused(act) for name, act in acts.items()}


def _ranks_of_one(name: str) -> None:
    strategy(name, reduction="gloo")


def _refused(act: Callable[[], object]) -> tuple[str, str]:
    try:
        act()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", "nothing was raised"


CASES = (primitives, memory, overlap, rows, sequences_first, refusals)

if __name__ == "__main__":
    torch.set_num_threads(1)
    Path(sys.argv[1]).write_bytes(pickle.dumps({case.__name__: case() for case in CASES}))
