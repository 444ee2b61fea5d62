"""A plain script that keeps its best weights, saves, and goes on from its file."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import dream

Figures = dict[str, Any]
Make = Callable[[Any], Optimizer]


class Tied(nn.Module):
    """Its head is its embedding, its layers do not divide by two, and one part is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 5)
        self.body = nn.Sequential(
            nn.Linear(5, 7, bias=False), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 5)
        )
        self.body[3].bias.requires_grad_(False)
        self.head = nn.Linear(5, 9, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.words(x).mean(1)))


class Split(nn.Module):
    """Has what split='tensor' can cut."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 6)
        self.up, self.down, self.head = nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.down(self.up(self.words(x).mean(1)).relu()))


class Average:
    """A script's own, which a checkpoint holds as it is."""

    def __init__(self, model: nn.Module) -> None:
        self.of = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model: nn.Module) -> None:
        for name, p in model.named_parameters():
            self.of[name].mul_(0.5).add_(p.detach(), alpha=0.5)


class Told:
    """Says what it is made of as it is pickled."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __getstate__(self) -> dict[str, Any]:
        return {"state": self._model.state_dict()}


def adam(parameters: Any) -> Optimizer:
    return torch.optim.AdamW(parameters, 0.01)


def adagrad(parameters: Any) -> Optimizer:
    return torch.optim.Adagrad(parameters, 0.01)


def adafactor(parameters: Any) -> Optimizer:
    return torch.optim.Adafactor(parameters, 0.01)


def momentum(parameters: Any) -> Optimizer:
    return torch.optim.SGD(parameters, 0.01, momentum=0.9)


MODELS: dict[str, type[nn.Module]] = {"tied": Tied, "split": Split}
WAYS: dict[str, tuple[str, dict[str, Any], str, Make]] = {
    "zero 3": ("sharded", {}, "tied", adam),
    "zero 2": ("sharded", {"zero": 2}, "tied", adafactor),
    "zero 1": ("sharded", {"zero": 1}, "tied", adagrad),
    "tensor": ("model_parallel", {"split": "tensor"}, "split", momentum),
}


def script(folder: Path, model: str, make: Make) -> None:
    """What a stranger writes: an epoch, the best weights, a file, and from the file once more."""
    torch.manual_seed(0)
    net = MODELS[model]()
    first = [*net.parameters()]
    optimizer = make(p for p in net.parameters() if p.requires_grad)
    rows = torch.randint(0, 9, (22, 4)), torch.randint(0, 9, (22,))
    batches = DataLoader(TensorDataset(*rows), 6, shuffle=True)
    average, best, least = Average(net), net.state_dict(), float("inf")
    smooth = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True)
    for epoch in range(2):
        loss = _epoch(net, optimizer, batches)
        average.update(net)
        smooth.update_parameters(net)
        if loss < least:
            least, best = loss, copy.deepcopy(net.state_dict())
        held = {"epoch": epoch, "net": net.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**held, "average": average, "smooth": smooth.state_dict()}, folder / "last.pt")
        torch.save(best, str(folder / "best.pt"))
    held = torch.load(folder / "last.pt", weights_only=False)
    again = MODELS[model]()
    resumed = make(p for p in again.parameters() if p.requires_grad)
    again.load_state_dict(held["net"])
    resumed.load_state_dict(held["optimizer"])
    _epoch(again, resumed, batches)
    torch.save({"net": again.state_dict(), "optimizer": resumed.state_dict()}, folder / "on.pt")
    again.load_state_dict(torch.load(folder / "best.pt"))
    listed = [p.tolist() for p in again.parameters()]
    torch.save([[*again.parameters()], listed], folder / "parameters.pt")
    numbers = {n: p.detach().cpu().numpy() for n, p in again.named_parameters()}
    torch.save({"first": first, "told": Told(net)}, folder / "told.pt")
    torch.save({n: torch.from_numpy(x) for n, x in numbers.items()}, folder / "numpy.pt")


def _epoch(net: nn.Module, optimizer: Optimizer, batches: Any) -> float:
    net.train()
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        return sum(F.cross_entropy(net(x), y).item() for x, y in batches)


def written(folder: str) -> None:
    """The script under each way, in the block."""
    torch.set_num_threads(1)
    for way, (name, options, model, make) in WAYS.items():
        (Path(folder) / way).mkdir(exist_ok=True)
        with dream.strategy(name, framework="torch", **options):
            script(Path(folder) / way, model, make)


def elsewhere(folder: str) -> Figures:
    """Other files than one of rank 0's, other picklers, other threads, and after the block."""
    torch.manual_seed(0)
    with dream.strategy("sharded", framework="torch") as made:
        net = Tied()
        optimizer = adam(net.parameters())
        _epoch(net, optimizer, DataLoader(TensorDataset(torch.arange(8).view(4, 2) % 9,
                                                        torch.arange(4)), 2))  # fmt: skip
        rank, kept, buffer = made.topology.rank, net.state_dict(), io.BytesIO()
        copies = {name: value.clone() for name, value in kept.items()}
        torch.save(kept, f"{folder}/own-{rank}.pt")
        torch.save(kept, buffer)
        inside = pickle.loads(pickle.dumps(kept))
        thread = _in_a_thread(lambda: torch.save(kept, io.BytesIO()))
        unpickled = _said(lambda: torch.save({"net": net, "by": lambda: 0}, f"{folder}/no.pt"))
        whole = made.full_state(net)
    after = io.BytesIO()
    torch.save([net.state_dict(), copies, optimizer.state_dict()], after)
    states = torch.load(io.BytesIO(after.getvalue()), weights_only=True)
    found = {"own": torch.load(f"{folder}/own-{rank}.pt"), "inside": inside, "after": states[0],
             "copies": states[1], "buffer": torch.load(io.BytesIO(buffer.getvalue()))}  # fmt: skip
    right = {name: _same(state, whole) for name, state in found.items()}
    return right | {"thread": thread, "unpickled": unpickled}


def doubled(_: nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
    """A hook of the script's."""
    return output * 2


class Recurrent(nn.Module):
    """Has a part that FSDP2 cuts and that has a state of its own to pickle, and a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(9, 5), nn.LSTM(5, 6, batch_first=True)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.GELU()) for _ in range(2))
        self.head, self.same = nn.Linear(6, 3), self.blocks[1]
        self.blocks[0][0].register_forward_hook(doubled)
        self.head.register_forward_hook(doubled)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layers(self.words(x))[0][:, -1]
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def modules(folder: str) -> Figures:
    """A whole model in a file, read again and trained on; and a copy, which has its hooks."""
    found = {}
    for name, options in (("alone", None), ("zero 3", {}), ("zero 2", {"zero": 2})):
        made = options is not None
        block = dream.strategy("sharded", framework="torch", **options or {})
        with block if made else contextlib.nullcontext():
            torch.manual_seed(0)
            net = Recurrent()
            rows = TensorDataset(torch.randint(0, 9, (10, 4)), torch.arange(10) % 3)
            batches = DataLoader(rows, 4)
            _epoch(net, momentum(net.parameters()), batches)
            torch.save(net, f"{folder}/{name}.pt")
            again = torch.load(f"{folder}/{name}.pt", weights_only=False)
            _epoch(again, momentum(again.parameters()), batches)
            torch.save({"again": again}, f"{folder}/{name} again.pt")
            x = rows.tensors[0]
            with torch.no_grad():
                found[name] = float((copy.deepcopy(net)(x) - net(x)).abs().max())
        torch.save(again, f"{folder}/{name} after {block.topology.rank if made else 0}.pt")
    return found


def guarded(folder: str) -> str:
    """What each rank is told where rank 0 alone saves."""
    with dream.strategy("sharded", framework="torch") as made:
        net = Tied()
        optimizer = adam(net.parameters())
        rows = TensorDataset(torch.arange(8).view(4, 2) % 9, torch.arange(4))
        _epoch(net, optimizer, DataLoader(rows, 2))
        if made.topology.rank == 0:
            return _said(lambda: torch.save(net.state_dict(), f"{folder}/guarded.pt"))
        return _said(lambda: _epoch(net, optimizer, DataLoader(rows, 2)))


def _same(state: Any, whole: Any) -> bool:
    return [*state] == [*whole] and all(
        type(value) is torch.Tensor and torch.equal(value, torch.from_numpy(whole[name]))
        for name, value in state.items()
    )


def _in_a_thread(act: Callable[[], Any]) -> str:
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(_said(act)))
    thread.start()
    thread.join()
    return said[0]


def _said(act: Callable[[], Any]) -> str:
    try:
        act()
    except Exception as error:  # is what is asked for
        return f"{type(error).__name__}: {error}"
    return "nothing"
