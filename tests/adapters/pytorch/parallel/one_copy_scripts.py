"""Trainings with one copy of the weights, and what a rank sees of them."""

from __future__ import annotations

import copy
import io
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

import dream
from dream.adapters.pytorch.parallel.one_copy.update import ELEMENTWISE

Make = Callable[[list[nn.Parameter]], Optimizer]
OPTIONS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3},
    "Adagrad": {"lr": 0.05},
    "RMSprop": {"lr": 0.01, "momentum": 0.9, "centered": True},
}
MAKES: dict[str, Make] = {
    kind.__name__: lambda p, kind=kind: kind(p, **OPTIONS.get(kind.__name__, {"lr": 0.01}))
    for kind in ELEMENTWISE
} | {
    "AdamW amsgrad": lambda p: optim.AdamW(p, lr=0.01, amsgrad=True),
    "Adam fused": lambda p: optim.Adam(p, lr=0.01, fused=True),
    "AdamW foreach": lambda p: optim.AdamW(p, lr=0.01, foreach=True),
}


class Net(nn.Module):
    """Sizes that no grain divides, channels_last, a number alone, and a head that is used by
    turns."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
        self.first, self.last = nn.Linear(5 * 4 * 4, 67), nn.Linear(67, 3)
        self.other = nn.Linear(67, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        head = self.other if self.calls in (3, 4) else self.last
        hidden = torch.tanh(self.first(torch.relu(self.conv(x)).flatten(1)))
        result: torch.Tensor = head(hidden) * self.scale
        return result


def data() -> TensorDataset:
    torch.manual_seed(1)
    return TensorDataset(torch.randn(21, 3, 6, 6), torch.randint(3, (21,)))


def trained(make: Make, *, once: bool, epochs: int = 1, **options: Any) -> tuple[nn.Module, Any]:
    """Six steps an epoch, the last of one sample."""
    with dream.strategy(
        "mirrored", one_copy=once, reduction="shared_memory", **options
    ) as strategy:
        torch.manual_seed(0)
        model = Net()
        optimizer = make(list(model.parameters()))
        step = strategy.train_step(model, F.cross_entropy, optimizer)
        losses = [step(x, y) for _ in range(epochs) for x, y in DataLoader(data(), batch_size=4)]
        seen = pickled(model.state_dict()), pickled(optimizer.state_dict())
    return model, (seen, [float(loss) for loss in losses], optimizer)


def pickled(state: Any) -> Any:
    kept = io.BytesIO()
    torch.save(state, kept)
    kept.seek(0)
    return torch.load(kept, weights_only=False)


def same(one: Any, other: Any) -> bool:
    """To the bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def compared(make: Make, **options: Any) -> str:
    """What differs from replicas of their own."""
    (_, own), (model, once) = (
        trained(make, once=False, **options),
        trained(make, once=True, **options),
    )
    found = [name for name, a, b in (
        ("weights", own[0][0], once[0][0]), ("state", own[0][1], once[0][1]),
        ("losses", own[1], once[1]), ("after", own[0][0], model.state_dict()),
        ("state after", own[0][1], once[2].state_dict()),
    ) if not same(a, b)]  # fmt: skip
    return ", ".join(found)


ALIKE = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta")
"""Those whose state is of the same parts as another's."""


def alike() -> dict[str, Any]:
    return {name: compared(MAKES[name]) for name in ALIKE}


def everything() -> dict[str, Any]:
    found: dict[str, Any] = {
        name: compared(make) for name, make in MAKES.items() if name not in ALIKE
    }
    found["accumulate"] = compared(MAKES["AdamW"], accumulate=2)
    found["shares"] = compared(MAKES["SGD"], shares=[3, 1])
    found["checkpoint"] = resumed()
    found["memory"] = where_it_lies()
    found |= {name: refused(act) for name, act in ACTS.items()}
    return found | {name: refused(start_only, **options) for name, options in OTHERS.items()}


def some() -> str:
    return compared(MAKES["SGD"]) + compared(MAKES["AdamW"])


def resumed() -> str:
    """Saved in mid-training and loaded twice: into a new training, and into the one that runs."""
    with dream.strategy("mirrored", one_copy=True) as strategy:
        folder = Path(strategy.communicator.broadcast_object(tempfile.mkdtemp()))
        model, optimizer, step = start(strategy)
        run(step, 3)
        strategy.save(folder, step=3, model=model, optimizer=optimizer)
        run(step, 3)
        expected = pickled(model.state_dict()), pickled(optimizer.state_dict())
        strategy.load(folder, model=model, optimizer=optimizer)
        run(step, 3)
        found = [] if same(expected, (model.state_dict(), optimizer.state_dict())) else ["running"]
        again, its, step = start(strategy)
        strategy.load(folder, model=again, optimizer=its)
        run(step, 3)
        found += [] if same(expected, (again.state_dict(), its.state_dict())) else ["new"]
    return ", ".join(found)


def start(strategy: Any) -> tuple[nn.Module, Optimizer, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 200), nn.Tanh(), nn.Linear(200, 3))
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    return model, optimizer, strategy.train_step(model, F.cross_entropy, optimizer)


def run(step: Any, times: int) -> None:
    torch.manual_seed(2)
    for _ in range(times):
        step(torch.randn(4, 9), torch.randint(3, (4,)))


def where_it_lies() -> list[bool]:
    """Whether parameters and state are one memory of all ranks; a copy's own is not."""
    with dream.strategy("mirrored", one_copy=True) as strategy:
        model, optimizer, step = start(strategy)
        run(step, 2)
        weight = next(model.parameters())
        state = optimizer.state[weight]["exp_avg"]
        twin = copy.deepcopy(model)
        kept = weight[0, 0].item()
        strategy.communicator.barrier()
        if strategy.topology.rank == 0:
            weight.data[0, 0] = 77.0
            state[0, 0] = 78.0
        strategy.communicator.barrier()
        seen = [weight[0, 0].item() == 77.0, state[0, 0].item() == 78.0,
                next(twin.parameters())[0, 0].item() == kept]  # fmt: skip
        strategy.communicator.barrier()
    return seen


def loop_untouched(_: Any, model: nn.Module, *__: Any) -> None:
    model(torch.randn(4, 9)).sum().backward()


def step_by_hand(_: Any, __: nn.Module, optimizer: Optimizer, ___: Any) -> None:
    optimizer.zero_grad()
    optimizer.step()


def written_outside(strategy: Any, model: nn.Module, _: Optimizer, step: Any) -> None:
    with torch.no_grad():
        if strategy.topology.rank == 0:
            next(model.parameters()).mul_(0.5)
    run(step, 1)


def part_of_a_model(strategy: Any, model: nn.Module, *_: Any) -> None:
    some = optim.SGD([next(model.parameters())], lr=0.1)
    run(strategy.train_step(model, F.cross_entropy, some), 1)


def another_optimizer(strategy: Any, model: nn.Module, *_: Any) -> None:
    strategy.train_step(model, F.cross_entropy, optim.LBFGS(model.parameters()))


def no_room(strategy: Any, *_: Any) -> None:
    """Files, and so the memory that is made of one, may have 4 KB on rank 0."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if strategy.topology.rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        run(start(strategy)[2], 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def start_only(*_: Any) -> None:
    """What is refused is refused when the block is made."""


ACTS = {act.__name__: act for act in (
    loop_untouched, step_by_hand, written_outside, part_of_a_model, another_optimizer, no_room,
)}  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {
    "over gloo": {"reduction": "gloo"}, "clipped": {"clip_norm": 1.0}, "buckets": {"bucket_mb": 5},
}  # fmt: skip


def refused(act: Callable[..., None], **options: Any) -> str:
    try:
        with dream.strategy("mirrored", one_copy=True, **options) as strategy:
            model, optimizer, step = start(strategy)
            run(step, 2)
            act(strategy, model, optimizer, step)
    except dream.DreamError as error:
        return str(error)
    return "nothing was said"
