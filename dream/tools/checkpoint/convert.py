"""A checkpoint of dream's from and to the files of others."""

from __future__ import annotations

from pathlib import Path

from dream._errors import ConfigurationError
from dream.checkpoint.content import NAMES, CheckpointContent
from dream.checkpoint.storage.folder import STATE, CheckpointFolder
from dream.strategies import registry
from dream.tools.checkpoint.show import place_of

_TORCH, _DCP = "dream.adapters.pytorch.tools.convert", ".dcp"
_KERAS = "dream.adapters.keras.tools.convert"
_CONVERTERS = {".pt": _TORCH, _DCP: _TORCH, ".keras": _KERAS, ".weights.h5": _KERAS}


def convert(source: Path, destination: Path, like: Path | None) -> None:
    """Convert, and say what was written. like: a .keras file of the model."""
    if not source.exists():
        raise ConfigurationError(
            f"There is nothing to convert. Received: {source}, which is not there."
        )
    if destination.exists() and not _is_ours(destination):
        raise ConfigurationError(
            f"Nothing is overwritten. Received: {destination}, which is there. Name another."
        )
    kind = _kind(destination)
    if kind is not None and _is_ours(source):
        place = place_of(source)
        found = CheckpointFolder(place.parent).load(place)
        registry.load(f"{_CONVERTERS[kind]}:write")(found, destination, like)
        print(f"{destination}: step {found.step} of {place}, {found.facts.get(NAMES)}'s names")
        return
    kind = ".dcp" if (source / ".metadata").is_file() else _kind(source)
    if kind is None or _is_ours(source):
        raise ConfigurationError(
            "Checkpoints of dream's are converted from and to .pt, .keras, .weights.h5 and DCP "
            f"(a folder NAME.dcp). Received: {source} to {destination}. Give one of these and a "
            "folder of checkpoints."
        )
    made: CheckpointContent = registry.load(f"{_CONVERTERS[kind]}:read")(source, like)
    place = CheckpointFolder(destination).save(made)
    print(f"{place}: step {made.step} of {source}, {made.facts[NAMES]}'s names")


def _is_ours(path: Path) -> bool:
    return (path / STATE).is_file() or (path.is_dir() and any(path.glob(f"step-*/{STATE}")))


def _kind(path: Path) -> str | None:
    return next((suffix for suffix in _CONVERTERS if path.name.endswith(suffix)), None)
