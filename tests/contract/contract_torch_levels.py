"""Precision and recomputation over the cells."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from contract_case import WITH_DREAM, Env, Figures, refusal
from contract_heard import heard
from contract_torch_kit import CASES, Net, adamw, arrays, loader, momentum, parameters, train
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Normed(nn.Module):
    """Convolutions and BatchNorm, and one over rows."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4)
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8, momentum=None))
        self.last = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.head(self.body(x[:, None])))


def _in_precision(name: str) -> Callable[[Env], Figures]:
    """A loop, then a step; what was of which type. One device also sums each batch in two parts,
    which tells the noise."""

    def run(env: Env) -> Figures:
        figures = _trained_in(env, name, 1)
        if env.mode == "single":
            torch.manual_seed(0)
            figures["noisy"] = _trained_in(env, name, 2)["parameters"]
        return figures

    return run


def _small(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """So small that no gradient overflows, wherever it is summed."""
    return F.cross_entropy(output, y) * 0.2


def _trained_in(env: Env, name: str, micros: int) -> Figures:
    knobs: Figures = {"precision": name, "accumulate": micros}
    with env.block(knobs=knobs) as strategy:
        model = Net().double() if name == "O0" else Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        outputs = set()
        for x, y in loader(61):
            optimizer.zero_grad()
            output = model(x)
            _small(output, y).backward()
            optimizer.step()
            outputs.add(output.dtype)
        step = strategy.train_step(model, _small, optimizer)
        values = [float(step(*batch)) for batch in loader(49)]
        with torch.no_grad():
            outputs.add(model(arrays(4)[0]).dtype)
        tensors = (*model.parameters(), *(p.grad for p in model.parameters()))
        state = {s["momentum_buffer"].dtype for s in optimizer.state.values()}
    return {
        "parameters": parameters(model),
        "values": values,
        "outputs": sorted(map(str, outputs)),
        "held": sorted({str(t.dtype) for t in tensors if t is not None}),
        "state": sorted(map(str, state)),
    }


for _name in ("float16", "O0", "O2", "O3"):
    _case = _in_precision(_name)
    _case.__name__ = f"in_precision_{_name}"
    CASES.add(*WITH_DREAM)(_case)


@CASES.add(*WITH_DREAM)
def cast_but_for_norms(env: Env) -> Figures:
    """O2; one device without it tells how far float16 is off."""

    def run(**knobs: Any) -> Figures:
        torch.manual_seed(0)
        with env.block(knobs=knobs):
            model = Normed()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
            train(model, optimizer, loader(61), epochs=2, loss=_small)
            whole = {n for n, p in model.named_parameters() if p.dtype == torch.float32}
        return {"parameters": parameters(model), "whole": sorted(whole)}

    found = run(precision="O2")
    return found if env.mode == "cell" else {**found, "uncast": run()["parameters"]}


def _overflown(env: Env, name: str) -> Figures:
    """One sample of the second batch is too large for float16, on one rank."""
    x, y = arrays(64)
    x[20] = 1e30
    changed = []
    with heard("overflowed") as lines, env.block(knobs={"precision": name}):
        model = Net()
        optimizer = adamw(model.parameters())
        for a, b in DataLoader(TensorDataset(x, y), batch_size=16):
            before = parameters(model)
            optimizer.zero_grad()
            F.cross_entropy(model(a), b).backward()
            optimizer.step()
            after = parameters(model)
            changed.append(any((before[key] != after[key]).any() for key in before))
    return {"changed": changed, "lines": lines, "parameters": parameters(model)}


@CASES.add(*WITH_DREAM)
def a_step_that_overflows_on_one_rank(env: Env) -> Figures:
    return {"found": {name: _overflown(env, name) for name in ("float16", "O2")}}


@CASES.add(*WITH_DREAM)
def clipped_in_float16(env: Env) -> Figures:
    """By hand in the loop, where gradients are unscaled already; and by the option."""

    def run(by_hand: bool) -> Figures:
        torch.manual_seed(0)
        knobs: Figures = {} if by_hand else {"clip_norm": 0.05}
        with env.block(knobs={"precision": "float16", **knobs}):
            model = Net()
            clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.05)  # noqa: E731
            between = clip if by_hand else lambda: None
            train(model, momentum(model.parameters()), loader(61), between=between)
        return parameters(model)

    return {"by_hand": run(True), "by_option": run(False)}


@CASES.add(*WITH_DREAM)
def scaling_refused(env: Env) -> Figures:
    def changed() -> None:
        with env.block(knobs={"precision": "O2"}):
            model = Net()
            clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.05)  # noqa: E731
            train(model, momentum(model.parameters()), loader(64), between=clip)

    def later() -> None:
        with env.block(knobs={"precision": "float16"}):
            model, batches = Net(), loader(64)
            optimizer = momentum(model.parameters())
        train(model, optimizer, batches)

    def closure() -> None:
        with env.block(knobs={"precision": "float16"}):
            model = Net()  # held: a rank that has collected it shards nothing, and others wait
            momentum(model.parameters()).step(lambda: 0.0)

    def scaler() -> None:
        with env.block(knobs={"precision": "float16"}):
            torch.amp.GradScaler("cpu")

    acts = {"changed": changed, "later": later, "closure": closure, "scaler": scaler}
    return {name: refusal(act) for name, act in acts.items()}


class _Block(nn.Module):
    """Notes each time that it is computed what its dropout drops: beside the module, since copies
    do not share the calls of one that keeps what they give."""

    notes: ClassVar[defaultdict[int, list[bytes]]] = defaultdict(list)
    numbers = itertools.count()

    def __init__(self, *, norm: bool, drop: float) -> None:
        super().__init__()
        kept = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.inner = nn.Sequential(nn.Linear(16, 16), kept, nn.Dropout(drop))
        self.number = next(self.numbers)

    @property
    def noted(self) -> list[bytes]:
        return self.notes[self.number]

    @property
    def times(self) -> int:
        return len(self.noted)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.inner(x)
        local = inner.to_local() if isinstance(inner, DTensor) else inner
        mask = (local.detach() == 0).numpy().tobytes()
        if isinstance(mask, bytes):  # no look at the forward pass
            self.noted.append(mask if torch.is_grad_enabled() else b"")
        return x + torch.tanh(inner)


class _Deep(nn.Module):
    """A chain, and a list that the forward pass goes through itself."""

    def __init__(self, *, norm: bool = True, drop: float = 0.3) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.chain = nn.Sequential(*(_Block(norm=norm, drop=drop) for _ in range(4)))
        self.list = nn.ModuleList(_Block(norm=norm, drop=drop) for _ in range(2))
        self.last = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.chain(self.first(x))
        for block in self.list:
            x = block(x)
        return self.last(x)


def _deep(
    env: Env, how: Any, *, samples: int = 61, norm: bool = True, drop: float = 0.3, **knobs: Any
) -> Figures:
    torch.manual_seed(0)
    with env.block(knobs={"recompute": how, **knobs}) as strategy:
        model = _Deep(norm=norm, drop=drop)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        train(model, optimizer, loader(samples), epochs=1)
        step = strategy.train_step(model, F.cross_entropy, optimizer)
        for batch in loader(64):
            step(*batch)
        blocks = [*model.chain, *model.list]
        times = [block.times for block in blocks]
        noted = [*itertools.chain(*(block.noted for block in blocks))]
        with torch.no_grad():
            model(arrays(4)[0])
    return {
        "parameters": parameters(model),
        "again": [n // 8 - 1 for n in times],
        "evaluated": [b.times - n for b, n in zip(blocks, times, strict=True)],
        "saved": _saved(model),
        "times": times,
        "dropped": Counter(mask for mask in noted if any(mask)),
    }


def _saved(model: nn.Module) -> int:
    """Bytes that one training call keeps for backward, beside parameters."""
    kept: dict[int, int] = {}
    alive: list[torch.Tensor] = []  # memory that is freed on the way may be another's next
    own = {p.data_ptr() for p in model.parameters()}

    def pack(x: torch.Tensor) -> torch.Tensor:
        if x.data_ptr() not in own:
            alive.append(x.detach())
            kept[x.untyped_storage()._cdata] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        F.cross_entropy(model(arrays(16)[0]), arrays(16)[1]).backward()
    return sum(kept.values())


HOW: dict[str, Any] = {"none": False, "all": True, "sqrt": "sqrt", "named": ["chain.1", "list.0"]}


@CASES.add(*WITH_DREAM)
def recomputed(env: Env) -> Figures:
    """Each way beside none at all, in this rank: dropout and BatchNorm included. Which layers are
    chosen is no matter of parts: there all of them are."""
    chosen = HOW if env.cell.strategy in ("single", "mirrored") else ("none", "all")
    return {name: _deep(env, HOW[name]) for name in chosen}


@CASES.add(*WITH_DREAM)
def recomputed_in_micro_batches(env: Env) -> Figures:
    return {name: _deep(env, HOW[name], samples=64, accumulate=2) for name in ("none", "all")}


@CASES.add("cell")
def recomputed_in_threads(env: Env) -> Figures:
    """Copies of a model share a generator, and some wait for one another."""
    calm: Figures = {"norm": False, "drop": 0.0}
    rows = "split=layers" in env.cell.options  # a chain is looked into there
    hows = {name: how for name, how in HOW.items() if not (rows and name == "sqrt")}
    local: Figures = {"drop": 0.0, "sync_batch_norm": False}
    return {
        "hows": {name: _deep(env, how, **calm) for name, how in hows.items()},
        "local": {name: _deep(env, HOW[name], **local) for name in ("none", "all")},
        "dropped": _deep(env, True, norm=False)["dropped"],
        "met": refusal(lambda: _deep(env, True)),
        "cut": refusal(lambda: _trained_chain(env)),
    }


def _trained_chain(env: Env) -> None:
    with env.block(knobs={"recompute": "sqrt"}):
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 4))
        train(model, momentum(model.parameters()), loader(16), epochs=1)


@CASES.add(*WITH_DREAM)
def recompute_refused(env: Env) -> Figures:
    def trained(how: Any) -> Callable[[], None]:
        def act() -> None:
            with env.block(knobs={"recompute": how}):
                model = Net()
                train(model, momentum(model.parameters()), loader(64), epochs=1)

        return act

    return {"name": refusal(trained(["encodr"])), "chain": refusal(trained("sqrt"))}
