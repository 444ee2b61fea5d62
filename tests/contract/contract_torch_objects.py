"""What becomes of objects: copies, files, life after the block, and what the block leaves."""

from __future__ import annotations

import copy
import io
import pickle
import time
from pathlib import Path
from typing import Any

import torch
from contract_case import EVERYWHERE, WITH_DREAM, Env, Figures, refusal
from contract_heard import heard
from contract_torch_kit import (
    CASES,
    EPOCHS,
    Indexed,
    Net,
    adamw,
    array,
    loader,
    momentum,
    parameters,
    train,
)
from contract_torch_names import takes_knob
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer
from torch.utils import data
from torch.utils.data import DataLoader


@CASES.add(*EVERYWHERE)
def training_goes_on_after_the_block(env: Env) -> Figures:
    with env.block():
        model = Net()
        optimizer = adamw(model.parameters())
        batches = loader(49)
        train(model, optimizer, batches, epochs=2)
    train(model, optimizer, batches, epochs=EPOCHS - 2)
    return {"parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def training_begins_after_the_block(env: Env) -> Figures:
    with env.block():
        model = Net()
        optimizer = momentum(model.parameters())
        batches = loader(49)
    train(model, optimizer, batches)
    return {"parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def moving_average_and_pickle(env: Env) -> Figures:
    """EMA of a deep copy; then copies are trained on rank 0 alone, so they must be plain."""
    with env.block():
        model = Net()
        optimizer = momentum(model.parameters())
        before = copy.deepcopy(model)
        batches = loader(61)
        train(model, optimizer, batches, epochs=1)
        average = copy.deepcopy(model)
        for _ in range(EPOCHS - 1):
            for x, y in batches:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                with torch.no_grad():
                    for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                        kept.lerp_(new, 0.1)
        again = pickle.loads(pickle.dumps(model))
        copied = copy.deepcopy(optimizer.state_dict())
    figures = {
        "parameters": parameters(model),
        "average": parameters(average),
        "before": parameters(before),
        "pickled": parameters(again),
        "types": [type(kind).__qualname__ for kind in (model, average, again)],
        "state": [array(entry["momentum_buffer"]) for entry in copied["state"].values()],
        "moved": {},
    }
    if env.rank == 0:
        for name, kept in (("average", average), ("pickled", again), ("before", before)):
            x, y = torch.ones(4, 8), torch.zeros(4, dtype=torch.long)
            train(kept, momentum(kept.parameters()), [(x, y)], epochs=3)
            figures["moved"][name] = parameters(kept)
    return figures


@CASES.add(*EVERYWHERE)
def keeping_the_best(env: Env) -> Figures:
    """A deep copy of the state, put back at the end."""
    with env.block():
        model = Net()
        optimizer = momentum(model.parameters())
        best = None
        for epoch in range(EPOCHS):
            train(model, optimizer, loader(49), epochs=1)
            if epoch == 1:
                best = copy.deepcopy(model.state_dict())
        assert best is not None
        model.load_state_dict(best)
    return {"parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def resuming_from_states(env: Env) -> Figures:
    """Model and optimizer states carried into new objects half-way."""
    with env.block():
        model = Net()
        optimizer = adamw(model.parameters())
        train(model, optimizer, loader(61), epochs=2)
        states = model.state_dict(), optimizer.state_dict()
        states = copy.deepcopy(states)
        model = Net()
        optimizer = adamw(model.parameters())
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
        train(model, optimizer, loader(61), epochs=2)
    return {"parameters": parameters(model)}


@CASES.add(*WITH_DREAM)
def prepared_what_was_made_before(env: Env) -> Figures:
    model = Net()
    optimizer = adamw(model.parameters())
    batches = loader(49)
    with env.block() as strategy:
        model, optimizer, batches = strategy.prepare(model, optimizer, batches)
        alone = strategy.prepare(model)
        train(model, optimizer, batches, epochs=2)
    train(model, optimizer, batches, epochs=EPOCHS - 2)
    return {
        "parameters": parameters(model),
        "alone": alone is model,
        "type": type(model).__name__,
    }


@CASES.add(*EVERYWHERE)
def batch_normalisation(env: Env) -> Figures:
    """One even batch through a BatchNorm, its buffers, and what was said; then some epochs."""
    synchronises = takes_knob(env.cell.strategy, env.cell.options, "batch_norm_over_all_ranks")
    knobs = {"sync_batch_norm": False} if synchronises else {}
    with heard("BatchNorm") as lines, env.block(knobs=knobs):
        model = nn.Sequential(nn.Unflatten(1, (2, 4)), nn.BatchNorm1d(2), nn.Flatten(), Net())
        optimizer = momentum(model.parameters())
        first = DataLoader(Indexed(12), batch_size=12)
        train(model, optimizer, [(x, y) for _, x, y in first], epochs=1)
        once = parameters(model[1])
        train(model, optimizer, loader(48 + 12), epochs=3)
        train(model, optimizer, loader(49), epochs=1)
    inputs = Indexed(12).x.numpy()
    return {"once": once, "parameters": parameters(model), "lines": lines, "inputs": inputs}


_OWNERS: tuple[Any, ...] = (
    nn.Module, nn.Linear, nn.Sequential, nn.Parameter, DataLoader, Optimizer, SGD, AdamW,
    DistributedDataParallel, torch.Tensor, torch, torch.nn, torch.optim, torch.autograd,
    torch.serialization, F, data, nn.utils, torch.distributed,
)  # fmt: skip


def _attributes() -> dict[str, object]:
    return {
        f"{owner.__name__}.{name}": value
        for owner in _OWNERS
        for name, value in vars(owner).items()
        if not name.startswith("__") or name in ("__init__", "__call__", "__setattr__", "__iter__")
    }


def _changed(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Names that went or mean another object, beside plain numbers that torch itself counts."""
    return sorted(
        name
        for name, value in before.items()
        if name not in after or (after[name] is not value and callable(value))
    )


@CASES.add(*WITH_DREAM)
def nothing_stays_patched(env: Env) -> Figures:
    train(Net(), momentum(Net().parameters()), [], epochs=0)
    adamw(Net().parameters())
    before = _attributes()
    with env.block():
        model = Net()
        train(model, momentum(model.parameters()), loader(61), epochs=1)
        inside = _changed(before, _attributes())
    after = _changed(before, _attributes())
    error = refusal(lambda: _fail_inside(env))
    after_error = _changed(before, _attributes())
    torch.manual_seed(40 + env.rank)
    outside = Net()
    begin = parameters(outside)
    sizes = train(outside, momentum(outside.parameters()), loader(61), epochs=1)
    return {
        "inside": inside,
        "after": after,
        "after_error": after_error,
        "error": error,
        "begin": begin,
        "outside": parameters(outside),
        "sizes": sizes,
    }


def _fail_inside(env: Env) -> None:
    with env.block():
        Net()
        raise KeyError("the user's own")


class _Unpicklable:
    def __reduce__(self) -> Any:
        raise RuntimeError("cannot be pickled")


def _read(path: Path) -> Any:
    """A state that was saved; empty where the file is torn."""
    try:
        return torch.load(path, weights_only=True)
    except RuntimeError:
        return {}


def _await(path: Path) -> None:
    limit = time.monotonic() + 120.0
    while not path.exists():
        assert time.monotonic() < limit, path
        time.sleep(0.01)


@CASES.add(*WITH_DREAM)
def files_are_rank_0s(env: Env) -> Figures:
    """Every rank saves, to a file of its own name and to one that all name (rank 1 when rank 0 has
    read what it wrote, so that without dream too a file is whole); then one save fails half-way."""
    folder = env.folder / f"{env.mode}-files"
    folder.mkdir(exist_ok=True)
    own, guarded, both = (folder / f"{name}.pt" for name in (env.rank, "guarded", "both"))
    read = folder / "rank-0-has-read"
    with env.block():
        model = Net()
        train(model, momentum(model.parameters()), loader(61), epochs=1)
        torch.save(model.state_dict(), own)
        torch.save({"model": model}, str(folder / f"whole{env.rank}.pt"))
        if env.rank == 0:
            torch.save(model.state_dict(), guarded)
        else:
            _await(read)
        torch.save({"rank": env.rank}, both)
        shared = torch.load(both)["rank"]
        read.touch()
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        failed = refusal(lambda: torch.save([torch.ones(9), _Unpicklable()], own))
    whole = folder / "whole0.pt"
    loaded = _read(own)
    again = torch.load(whole, weights_only=False)["model"] if env.rank == 0 else model
    buffer.seek(0)
    return {
        "parameters": parameters(model),
        "loaded": {f"0.{name}": value.numpy() for name, value in loaded.items()},
        "whole": parameters(again),
        "buffer": {f"0.{n}": v.numpy() for n, v in torch.load(buffer).items()},
        "failed": failed,
        "shared": shared,
        "left": [path.name for path in folder.glob(f".part*{env.rank}.pt")],
    }
