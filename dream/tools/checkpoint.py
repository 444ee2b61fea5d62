"""What a folder of checkpoints holds, whether it is whole, and conversions from and to the files of
others. No framework is needed but for conversions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dream._errors import ConfigurationError, Unsupported
from dream.checkpoint.content import NAMES, CheckpointContent
from dream.checkpoint.storage.folder import MODEL, OPTIMIZER, STATE, CheckpointFolder
from dream.files import sizes
from dream.strategies import registry
from dream.tools import tables
from dream.tools.tables import screen


def place_of(path: Path) -> Path:
    """Return the checkpoint that is meant: itself, or a folder's newest."""
    if (path / STATE).is_file():
        return path
    found = CheckpointFolder(path).newest()
    if found is None:
        raise ConfigurationError(
            f"There is no complete checkpoint here. Received: {path}. Pass a folder written by "
            "strategy.save or dream.keras.Checkpoint."
        )
    return found


def show(path: Path, *, arrays: bool) -> None:
    place = place_of(path)
    console = screen()
    state = CheckpointFolder(place.parent).state(place)
    facts = state["facts"]
    console.print(f"{place}: step {state['step']}, {_size(place)}")
    told = {
        "written by": _writer(facts),
        "models": ", ".join(name or "one" for name in state["models"]),
        "optimizers": ", ".join(_optimizer(each) for each in state["optimizers"].values()),
        "schedulers": ", ".join(name or "one" for name in state["schedulers"]),
        "generators": ", ".join(state["random"]),
        "data": _data(state["data"]),
        "extra": ", ".join(state["extra"]),
    }
    for name, words in told.items():
        console.print(f"  {name:<11} {words or 'none'}", soft_wrap=True)
    others = [p.name for p in CheckpointFolder(place.parent).whole() if p != place]
    if others and place != path:
        console.print(f"  {'others':<11} {', '.join(others)}", soft_wrap=True)
    if arrays:
        _show_arrays(place)


def check(path: Path) -> bool:
    """Whether every checkpoint is whole."""
    one = (path / STATE).is_file()
    folder = CheckpointFolder(path.parent if one else path)
    places = [path] if one else folder.all() or [place_of(path)]  # which says that none is there
    sound = True
    for place in places:
        try:
            folder.check(place)
        except ConfigurationError as error:
            sound = False
            print(f"{place.name}: {error}")
        else:
            print(f"{place.name}: whole, {_size(place)}")
    return sound


def _show_arrays(place: Path) -> None:
    made = tables.table("array", "shape", "dtype", words=("array", "dtype"), folded=("array",))
    for name in (MODEL, OPTIMIZER):
        for array, told in _headers(place, name).items():
            made.add_row(array, "x".join(map(str, told["shape"])) or "()", told["dtype"])
    tables.show(screen(), made)


def _headers(place: Path, name: str) -> dict[str, Any]:
    """Return what a safetensors file says of its arrays: its first 8 bytes count those of a JSON
    header."""
    stem = name.removesuffix(".safetensors")
    found: dict[str, Any] = {}
    for path in sorted(place.glob(f"{stem}*.safetensors")):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            found |= json.loads(file.read(length))
    found.pop("__metadata__", None)
    return found


def _writer(facts: Mapping[str, Any]) -> str:
    ranks = facts.get("world_size")
    words = [facts.get(NAMES), facts.get("strategy"), ranks and f"{ranks} rank{'s' * (ranks > 1)}",
             f"dream {facts['dream']}" if "dream" in facts else "a conversion"]  # fmt: skip
    return ", ".join(str(word) for word in words if word)


def _optimizer(told: Mapping[str, Any]) -> str:
    count = sum(len(group["params"]) for group in told["groups"])
    return f"{told['kind']} of {count} parameters"


def _data(data: Mapping[str, Any] | None) -> str:
    if data is None:
        return ""
    if "epoch" not in data:
        return "; ".join(f"{name}: {_data(each)}" for name, each in data.items())
    return f"epoch {data.get('epoch', '?')}, {data.get('batches', '?')} batches into it"


def _size(place: Path) -> str:
    return sizes.show(sum(path.stat().st_size for path in place.iterdir()))


_TORCH, _DCP = "dream.adapters.pytorch.tools.convert", ".dcp"
_KERAS = "dream.adapters.keras.tools.convert"
_CONVERTERS = {".pt": _TORCH, _DCP: _TORCH, ".keras": _KERAS, ".weights.h5": _KERAS}


def convert(source: Path, destination: Path, like: Path | None) -> None:
    """Convert, and say what was written. like: a .keras file of the model."""
    if not source.exists():
        raise ConfigurationError(
            f"There is nothing to convert. Received: {source}, which is not there."
        )
    if (
        destination.exists()
    ):  # a folder of checkpoints would lose one of the same step, or its oldest
        raise ConfigurationError(
            f"Existing files are not overwritten. Received: {destination}, which exists. Choose "
            "another name."
        )
    kind = _kind(destination)
    if kind is not None and _is_ours(source):
        place = place_of(source)
        found = CheckpointFolder(place.parent).load(place)
        if _CONVERTERS[kind] == _KERAS:
            _check_for_keras(found, destination, like)
        registry.load(f"{_CONVERTERS[kind]}:write")(found, destination, like)
        print(f"{destination}: step {found.step} of {place}, {found.facts.get(NAMES)}'s names")
        return
    kind = ".dcp" if (source / ".metadata").is_file() else _kind(source)
    if kind is None or _is_ours(source):
        raise ConfigurationError(
            "dream checkpoints can be converted from and to .pt, .keras, .weights.h5 and DCP (a "
            f"folder NAME.dcp). Received: {source} to {destination}. Give one of these and a "
            "folder of checkpoints."
        )
    if kind == ".weights.h5" or like is not None:
        _check_like(source, like)
    made: CheckpointContent = registry.load(f"{_CONVERTERS[kind]}:read")(source, like)
    place = CheckpointFolder(destination).save(made)
    print(f"{place}: step {made.step} of {source}, {made.facts[NAMES]}'s names")


def _check_for_keras(found: CheckpointContent, destination: Path, like: Path | None) -> None:
    """Raise before Keras is imported, which takes seconds."""
    if [*found.models] != [""]:
        raise Unsupported(
            f"A Keras file holds one model. Received: a checkpoint of {len(found.models)} models. "
            "Load it with strategy.load, and save each model."
        )
    _check_like(destination, like)


def _check_like(path: Path, like: Path | None) -> None:
    if like is None or not like.is_file():
        raise ConfigurationError(
            f"Neither file says which layers these weights belong to. Received: {path}, "
            f"--like={like}. Pass --like MODEL.keras, a file of the same model."
        )


def _is_ours(path: Path) -> bool:
    return (path / STATE).is_file() or (path.is_dir() and any(path.glob(f"step-*/{STATE}")))


def _kind(path: Path) -> str | None:
    return next((suffix for suffix in _CONVERTERS if path.name.endswith(suffix)), None)
