"""Loads that are refused, and whether anything was changed by them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dream


def refusals(folder: str) -> dict[str, str]:
    """By case what was said, or what had been changed all the same."""
    with dream.strategy("single") as strategy:
        places = _saved(strategy, Path(folder))
        return {name: _tried(strategy, places, *case) for name, case in CASES.items()}


def _parts(
    sizes: tuple[int, ...] = (4, 3),
    samples: int = 20,
    batch: int = 5,
    kind: Any = torch.optim.AdamW,
) -> dict[str, Any]:
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))
    data = TensorDataset(torch.randn(samples, 4), torch.randint(0, 3, (samples,)))
    return {
        "model": model,
        "optimizer": kind(model.parameters(), lr=0.1),
        "data": DataLoader(data, batch_size=batch),
    }


def _saved(strategy: Any, folder: Path) -> dict[str, Path]:
    parts = _parts()
    model, optimizer = parts["model"], parts["optimizer"]
    for count, (x, y) in enumerate(parts["data"], 1):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if count == 2:
            break
    places = {name: folder / name for name in ("whole", "newer", "uncommitted", "flipped", "bare")}
    strategy.save(places["whole"], step=2, **parts)
    strategy.save(places["bare"], step=2, model=model)
    for name in ("newer", "uncommitted", "flipped"):
        shutil.copytree(places["whole"], places[name])
    (at,) = places["newer"].glob("step-*")
    state = json.loads((at / "state.json").read_text()) | {"format": 99}
    (at / "state.json").write_text(json.dumps(state))
    (at / "COMMITTED").write_text(sha256((at / "state.json").read_bytes()).hexdigest())
    next(places["uncommitted"].glob("step-*/COMMITTED")).unlink()
    weights = next(places["flipped"].glob("step-*/optimizer.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-3] ^= 4
    weights.write_bytes(content)
    (folder / "file").touch()
    return {**places, "file": folder / "file", "part": at.parent}


CASES: dict[str, tuple[str, Callable[[], dict[str, Any]], tuple[str, ...]]] = {
    "missing": ("whole", lambda: _parts((4, 3, 3)), ("model",)),
    "surplus": ("whole", lambda: {"model": nn.Sequential(nn.Linear(4, 3, bias=False))}, ("model",)),
    "shape": ("whole", lambda: _parts((4, 5)), ("model",)),
    "optimizer": ("whole", lambda: _parts(kind=torch.optim.Adagrad), ("model", "optimizer")),
    "newer": ("newer", _parts, ("model",)),
    "uncommitted": ("uncommitted", _parts, ("model",)),
    "flipped": ("flipped", _parts, ("model",)),
    "file": ("file", _parts, ("model",)),
    "bare": ("bare", _parts, ("model", "optimizer")),
    "length": ("whole", lambda: _parts(samples=25), ("model", "optimizer", "data")),
    "batch": ("whole", lambda: _parts(batch=4), ("model", "optimizer", "data")),
}


def _tried(
    strategy: Any, places: dict[str, Path], place: str, make: Any, given: tuple[str, ...]
) -> str:
    parts = make()
    model, optimizer = parts["model"], parts.get("optimizer")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.get_rng_state()
    try:
        strategy.load(places[place], **{name: parts[name] for name in given})
    except dream.ConfigurationError as error:
        same = all(torch.equal(before[name], v) for name, v in model.state_dict().items())
        same = same and torch.equal(generator, torch.get_rng_state())
        fresh = optimizer is None or not optimizer.state or type(optimizer).__name__ == "Adagrad"
        return str(error) if same and fresh else f"changed all the same: {error}"
    return "taken"


def taken_in_part(folder: str) -> list[Any]:
    """Weights without an optimizer, and a checkpoint by its own folder."""
    with dream.strategy("single") as strategy:
        places = _saved(strategy, Path(folder))
        parts = _parts()
        strategy.load(places["bare"], strict=False, **parts)
        (one,) = places["whole"].glob("step-*")
        at = strategy.load(one, model=parts["model"])
        none = strategy.load(Path(folder) / "nothing", model=parts["model"])
        return [not parts["optimizer"].state, at and at.step, none]
