"""What `test_gpu.py` has ranks do: on a GPU, or as if tensors were on one."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import dream
from dream.adapters.pytorch import devices, private, shared_gpu
from dream.adapters.pytorch.loss import scaling
from dream.adapters.pytorch.loss.terms import Term

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "mean": lambda out, y, _: F.cross_entropy(out, y),
    "class weights": lambda out, y, w: F.cross_entropy(out, y, weight=w),
    "left out": lambda out, y, _: F.cross_entropy(out, torch.where(y == 0, -100, y)),
    "squares": lambda out, y, _: F.mse_loss(out, F.one_hot(y, 4).to(out.dtype)),
    "sum": lambda out, y, _: F.cross_entropy(out, y, reduction="sum") / 50,
    "mask": lambda out, y, _: (out.pow(2).mean(1) * (y > 1)).sum() / ((y > 1).sum() + 1e-8),
    "rare": lambda out, y, _: (out.pow(2).mean(1) * (y == 5)).sum() / ((y == 5).sum() + 1e-8),
    "floor": lambda out, y, w: (
        (out.pow(2).mean(1) * (y == 3)).sum() / torch.maximum((y == 3).sum(), w.new_ones(()))
    ),
    "looked up": lambda out, y, _: (out[out.detach()[:, 0].argsort()] ** 2).mean() + 0 * y.sum(),
    "several": lambda out, y, w: (
        F.cross_entropy(out, y, weight=w) + 0.1 * out.abs().sum() / 8 + 0.01 * w.sum()
    ),
}


def net(norm: bool = True) -> nn.Sequential:
    middle = nn.BatchNorm1d(12) if norm else nn.Identity()
    dropped = nn.Dropout(0.2) if norm else nn.Identity()
    first, last = nn.Linear(6, 12, bias=not norm), nn.Linear(12, 4)
    return nn.Sequential(first, middle, nn.Tanh(), dropped, last).to(DEVICE)


def train(
    loss: Callable[..., torch.Tensor], strategy: Any = None, *, norm: bool = True, **options: Any
) -> list[Any]:
    """The numbers that a script ends with. strategy: whose step is taken; None for a loop."""
    torch.manual_seed(3)
    model, w = net(norm), torch.rand(4).to(DEVICE) + 0.5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, **options)
    labels = torch.randint(0, 4, (44,))
    if loss is LOSSES["rare"]:
        labels[:4] = 5  # of which most batches have none
    data = TensorDataset(torch.randn(44, 6), labels)
    step = strategy and strategy.train_step(model, lambda out, y: loss(out, y, w), optimizer)
    for _ in range(2):
        for x, y in DataLoader(data, batch_size=8, shuffle=True):
            if step:
                step(x, y)
                continue
            x, y = x.to(DEVICE), y.to(DEVICE)
            optimizer.zero_grad()
            loss(model(x), y, w).backward()
            optimizer.step()
    whole = (strategy.full_state(model) if strategy else model.state_dict()).values()
    return [float(torch.as_tensor(each).double().abs().sum()) for each in whole]


@contextmanager
def away() -> Iterator[None]:
    """Inside, tensors are as if on a GPU."""
    own = devices.is_away
    devices.is_away = lambda _: True
    try:
        yield
    finally:
        devices.is_away = own


def as_if_away() -> dict[str, Any]:
    """Losses that are read as on a GPU, and a default device."""
    with away(), dream.strategy("mirrored", reduction="gloo"):  # beside which a message is sent
        found: dict[str, Any] = {name: train(loss) for name, loss in LOSSES.items()}
        try:
            torch.set_default_device("meta")
            made = (torch.randn(3), torch.rand(3), torch.randperm(3), torch.randint(3, (2,)))
            found["default device"] = [each.device.type for each in made]
        finally:
            torch.set_default_device(None)
    return found


def divisors_that_change() -> list[float]:
    """A loop over parameters that are in no module. Its divisor is one number everywhere, as long
    as all ranks' rows count."""
    torch.manual_seed(0)
    w = nn.Parameter(torch.randn(6, 1))
    optimizer = torch.optim.SGD([w], lr=0.1)
    counts = torch.ones(64)
    counts[33:36] = counts[50:53] = counts[60] = 0
    data = TensorDataset(torch.randn(64, 6), torch.randn(64, 1), counts)
    for x, y, counted in DataLoader(data, batch_size=8):
        optimizer.zero_grad()
        errors = (x @ w - y).pow(2).squeeze(1) * counted
        (errors.sum() / counted.sum().item()).backward()
        optimizer.step()
    return [float(each) for each in w.detach().flatten()]


class Branches(nn.Module):
    """Calls one of two parts, which are gathered by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2))

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        made: torch.Tensor = self.parts[which](x)
        return made


def overflowing(x: torch.Tensor) -> torch.Tensor:
    """The same, whose gradient is no number on one rank, as one in float16 that is too large."""
    if distributed.get_rank() == 1:
        x.register_hook(lambda gradient: gradient * torch.inf)
    return x


def heard_late() -> dict[str, Any]:
    """What is heard a step later, where losses are read as on a GPU."""
    found: dict[str, Any] = {}
    with dream.strategy("mirrored", reduction="gloo"):
        found["divisors at once"] = divisors_that_change()
    with away(), dream.strategy("mirrored", reduction="gloo"):
        found["divisors later"] = divisors_that_change()
    try:
        with away(), dream.strategy("sharded", reduction="gloo") as strategy:
            model, rank = Branches(), strategy.topology.rank
            for step in range(9):  # before the first eight they meet
                model(torch.ones(2, 6), rank if step == 8 else 0).sum().backward()
    except dream.Desynchronized as error:
        found["last step"] = str(error)
    return found


def overflows() -> bool:
    """Whether a gradient that is no number is one to a GradScaler too."""
    torch.manual_seed(0)
    w = torch.rand(4) + 0.5
    with away(), dream.strategy("mirrored", reduction="gloo"):
        model = net(norm=False)
        size = nn.ParameterDict({"log": nn.Parameter(torch.zeros((), device=DEVICE))})
        both = nn.ModuleDict({"net": model, "size": size})
        both.forward = lambda x: (overflowing(model(x)), size["log"])  # type: ignore[method-assign]
        for x, y in DataLoader(TensorDataset(torch.randn(8, 6), torch.arange(8) % 4), batch_size=8):
            out, log = both(x.to(DEVICE))
            (torch.exp(log) * F.cross_entropy(out, y.to(DEVICE), weight=w.to(DEVICE))).backward()
    return all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def held_by_folds() -> float:
    """What a GPU holds in the last of four blocks, by what it holds in the first."""
    held = []
    for _ in range(4):
        with dream.strategy("single", framework="torch", recompute=True):
            model = nn.Sequential(*(nn.Linear(6000, 6000) for _ in range(4))).cuda()
            model(torch.randn(8, 6000).cuda()).sum().backward()
            held.append(torch.cuda.memory_allocated())
    return held[-1] / held[0]


def alone() -> dict[str, Any]:
    return {name: train(loss) for name, loss in LOSSES.items()}


def tensor_at_once() -> list[Any]:
    """An optimizer that steps all parameters at once, as is torch's default on a GPU."""
    with dream.strategy("model_parallel", split="tensor") as strategy:
        return train(LOSSES["mean"], strategy, norm=False, foreach=True)


def at_once() -> list[Any]:
    return train(LOSSES["mean"], norm=False, foreach=True)


def wide_count() -> str:
    """The dtype of a float32 loss's gradient, times a count in float64 that lies beside it."""
    root = torch.ones((), requires_grad=True) * 1
    factor: Any = torch.tensor(0.5, dtype=torch.float64)
    terms: Any = [object.__new__(Term)]
    given, _ = scaling.scaled(root, torch.ones(()), terms, [factor])
    assert given is not None
    return str(given.dtype)


def through_the_cpu(copies: bool) -> dict[str, Any]:
    """The group of ranks that share a GPU. copies: as if all tensors were on it."""
    if copies:
        shared_gpu._is_cuda = lambda value: isinstance(value, torch.Tensor)
        shared_gpu._on_cpu = lambda values: private.tree_map(
            lambda x: x.clone() if isinstance(x, torch.Tensor) else x, values
        )
    distributed.init_process_group(shared_gpu.NAME)
    try:
        return _collectives() | _models()
    finally:
        distributed.destroy_process_group()


def _collectives() -> dict[str, Any]:
    rank = distributed.get_rank()
    total = torch.full((3,), rank + 1.0)
    distributed.all_reduce(total)
    objects: list[Any] = [None, None]
    distributed.all_gather_object(objects, {"rank": rank})
    distributed.barrier()
    got, moved = torch.zeros(3), torch.zeros(4)
    away = distributed.batch_isend_irecv([
        distributed.P2POp(distributed.irecv, got, 1 - rank),
        distributed.P2POp(distributed.isend, torch.full((3,), float(rank)), 1 - rank),
    ])  # fmt: skip
    for work in away:
        work.wait()
    distributed.all_to_all_single(moved, torch.arange(4.0) + 10 * rank)
    return {
        "sum": total.tolist(), "objects": objects, "received": got.tolist(), "moved": moved.tolist()
    }  # fmt: skip


def _models() -> dict[str, Any]:
    """How far the gradients and steps of torch's own are from those of one device."""
    torch.manual_seed(0)
    rank, mesh = distributed.get_rank(), init_device_mesh("cpu", (2,))
    x, y = torch.randn(8, 6), torch.randint(0, 4, (8,))
    own = slice(4 * rank, 4 * rank + 4)
    first = net(norm=False).cpu()
    plain, sharded, ddp, cut = (copy.deepcopy(first) for _ in range(4))
    fully_shard(sharded, mesh=mesh)
    replicas = DistributedDataParallel(ddp)
    for model, rows in ((plain, slice(None)), (sharded, own), (replicas, own)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    parallelize_module(cut, mesh, {"0": ColwiseParallel(), "4": RowwiseParallel()})

    def apart(model: nn.Module, other: nn.Module) -> float:
        pairs = zip(model.parameters(), other.parameters(), strict=True)
        return max(float((private.to_whole(p) - q).abs().max()) for p, q in pairs)

    return {
        "sharded": apart(sharded, plain), "ddp": apart(ddp, plain),
        "cut": float((cut(x) - first(x)).abs().max()),
    }  # fmt: skip


def on_the_gpu(word: str, by_step: bool, norm: bool, options: dict[str, Any]) -> list[Any]:
    with dream.strategy(word, **options) if word else nullcontext() as strategy:
        return train(LOSSES["mean"], strategy if by_step else None, norm=norm)


def keras_with_dropout(block: bool) -> list[Any]:
    """Weights and losses of a Keras model on torch, which draws from the GPU's own generator."""
    import keras

    keras.utils.set_random_seed(5)
    x = torch.randn(75, 6).numpy()
    with dream.strategy("mirrored") if block else nullcontext():
        model = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(8), keras.layers.Dropout(0.3)]
        )
        model.add(keras.layers.Dense(2))
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
        told = model.fit(x, x[:, :2], batch_size=16, epochs=3, verbose=0)
        return [*(float(abs(w).sum()) for w in model.get_weights()), *told.history["loss"]]


def waits(by_step: bool) -> list[str]:
    """What has the host wait for the GPU in a step, once the first ones are over."""
    with dream.strategy("mirrored") as strategy:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        x, y = torch.randn(8, 6, device=DEVICE), torch.randint(0, 4, (8,), device=DEVICE)
        step = strategy.train_step(model, F.cross_entropy, optimizer)

        def loop(x: torch.Tensor, y: torch.Tensor) -> None:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

        run = step if by_step else loop
        for _ in range(4):
            run(x, y)
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run(x, y)
        torch.cuda.set_sync_debug_mode("default")
    return [f"{w.filename}:{w.lineno}" for w in caught if "synchronizing" in str(w.message)]
