"""A checkpoint found and taken by a job of many ranks: each reads it, an error is everybody's."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from dream._errors import ConfigurationError
from dream._log import logger
from dream.checkpoint import background, layers, ported, runs
from dream.checkpoint.checkpointer import Checkpointer, Parts
from dream.checkpoint.commits import Commits
from dream.checkpoint.content import NAMES, CheckpointContent, check_names
from dream.checkpoint.hosts import Kept, digest
from dream.checkpoint.storage.allotment import no_array
from dream.checkpoint.storage.folder import STATE, CheckpointFolder, order
from dream.collectives import Communicator
from dream.collectives.rank_zero import at_rank_0
from dream.data import tracked

_ON_DISK, _IN_MEMORY = "on disk", "in memory"


def load(
    path: str | os.PathLike[str],
    parts: Parts,
    held: Checkpointer,
    ranks: Communicator,
    *,
    strict: bool = True,
    commits: Commits | None = None,
) -> CheckpointContent | None:
    """Set everything as the newest checkpoint has it; None where there is none. Every rank calls
    it, and nothing is set where something does not fit. strict: whether all must be in it. commits:
    those in memory, one of which may be newer."""
    found = find(path, ranks, commits)
    if found is not None:
        go_on(found, parts if strict else _there(found, parts), held, ranks)
    return found


def go_on(found: CheckpointContent, parts: Parts, held: Checkpointer, ranks: Communicator) -> None:
    """Set everything as a checkpoint has it, and let trackers go on with its runs."""
    take(found, parts, held)
    if ranks.rank == 0:
        runs.go_on(found.runs)


def find(
    path: str | os.PathLike[str], ranks: Communicator, commits: Commits | None = None
) -> CheckpointContent | None:
    """Read the newest checkpoint on every rank; None where there is none."""
    background.settle()
    kept = None if commits is None else commits.newest()
    told = at_rank_0(ranks, lambda: _told(Path(path), kept))
    if not told:
        return None
    where, seen, name = json.loads(told)
    place = Path(path) / name
    if where == _IN_MEMORY:
        assert commits is not None
        assert kept is not None
        place, commits.ahead = commits.place_of(kept), True
    _agree(ranks, place, seen)
    folder = CheckpointFolder(place.parent)
    return folder.read(place, _check_files(ranks, folder, place))


def take(found: CheckpointContent, parts: Parts, held: Checkpointer) -> CheckpointContent:
    """Set everything as a checkpoint has it, and return what this rank took; nothing where
    something does not fit."""
    _check_there(found, parts)
    if found.facts.get(NAMES, held.api) != held.api:
        found = _as_here(found, parts, held)
    _check(found, parts, held)
    found = held.own_of(found)
    if parts.data is not None and found.data is not None:
        tracked.load_into(parts.data, found.data)  # first: it raises for other data
    for key, model in parts.models.items():
        held.set_model(model, found.models[key])
    for key, optimizer in parts.optimizers.items():
        held.set_optimizer(optimizer, parts.models, found.optimizers[key])
    for key, scheduler in parts.schedulers.items():
        scheduler.load_state_dict(found.schedulers[key])
    held.set_replicas(found, parts)
    if found.random:
        held.set_random(found.random, parts.models)
    else:
        logger.info(
            "the checkpoint has no random-generator state: generators stay as the script set them"
        )
    return found


def _as_here(found: CheckpointContent, parts: Parts, held: Checkpointer) -> CheckpointContent:
    """Return a checkpoint that the other framework wrote in the names and layouts of this one."""
    if parts.data is not None:
        raise ConfigurationError(
            "The order of samples cannot be restored in another framework, which draws different "
            f"random numbers. Received: data, and a checkpoint that {found.facts[NAMES]} wrote. "
            "Remove data; the epoch then starts over."
        )
    logger.info("the checkpoint was written by %s: the generators of %s are not "
        "restored and stay as the script set them", found.facts[NAMES], held.api)  # fmt: skip
    saved = {key: layers.from_plain(found.layers.get(key)) for key in parts.models}
    here = {key: layers.from_plain(held.describe(model)) for key, model in parts.models.items()}
    models = {
        key: ported.counts([*held.types(model)], found.step)
        | ported.model(saved[key], here[key], found.models[key])
        for key, model in parts.models.items()
    }
    theirs, ours = layers.among(saved), layers.among(here)
    optimizers = {
        key: ported.optimizer(
            theirs,
            ours,
            found.optimizers[key],
            held.optimizer(each, parts.models, no_array),
            found.step,
            held.api,
        )
        for key, each in parts.optimizers.items()
    }
    return replace(found, models=models, optimizers=optimizers, replicas=None)


def _check(found: CheckpointContent, parts: Parts, held: Checkpointer) -> None:
    for name, model in parts.models.items():
        held.check_model(model, found.models[name])
    for name, optimizer in parts.optimizers.items():
        held.check_optimizer(optimizer, parts.models, found.optimizers[name])


def _check_there(found: CheckpointContent, parts: Parts) -> None:
    """Raise where something is asked for that is not in a checkpoint."""
    check_names("models", [*found.models], [*parts.models])
    for name in _missing(found, parts):
        raise ConfigurationError(
            f"This checkpoint has no {name}. Received: {name}=, and a checkpoint that was saved "
            f"without it. Remove {name}, or pass strict=False, which keeps its present state."
        )
    if parts.optimizers:
        check_names("optimizers", [*found.optimizers], [*parts.optimizers])
    if parts.schedulers:
        check_names("schedulers", [*found.schedulers], [*parts.schedulers])


def _missing(found: CheckpointContent, parts: Parts) -> list[str]:
    lacks = {
        "optimizer": bool(parts.optimizers) and not found.optimizers,
        "scheduler": bool(parts.schedulers) and not found.schedulers,
        "data": parts.data is not None and found.data is None,
    }
    return [name for name, lacking in lacks.items() if lacking]


def _there(found: CheckpointContent, parts: Parts) -> Parts:
    """Return those parts that a checkpoint has something for, and say which stay as they are."""
    left = _missing(found, parts)
    if left:
        logger.info("the checkpoint has no %s, so it stays as it is", " and no ".join(left))
    return Parts(
        parts.models,
        {} if "optimizer" in left else parts.optimizers,
        {} if "scheduler" in left else parts.schedulers,
        None if "data" in left else parts.data,
    )


def _told(path: Path, kept: Kept | None) -> str:
    """Say where the checkpoint is, its digest, and its name where the path is of several; nothing
    where there is none. kept: the newest in memory, which is taken where it is as new."""
    if (path / STATE).is_file():
        return json.dumps([_ON_DISK, digest(path), ""])
    place = CheckpointFolder(path).newest()
    if kept is not None and (place is None or kept.order[0] >= order(place)[0]):
        return json.dumps([_IN_MEMORY, kept.digest, kept.place])
    return "" if place is None else json.dumps([_ON_DISK, digest(place), place.name])


def _check_files(ranks: Communicator, folder: CheckpointFolder, place: Path) -> dict[str, Any]:
    """Return what a checkpoint says of itself, once the ranks have looked at all its files."""
    state: dict[str, Any] = {}
    wrong = ""
    try:
        state = folder.check(place, ranks.rank, ranks.world_size)
    except (ConfigurationError, OSError) as error:
        wrong = str(error)
    for words in ranks.all_gather_object(wrong):
        if words:
            raise ConfigurationError(words)
    return state


def _agree(ranks: Communicator, place: Path, seen: str) -> None:
    """Every rank reads for itself, so each must see the folder."""
    sees = ranks.all_gather_object(digest(place) == seen)
    blind = [str(rank) for rank, there in enumerate(sees) if not there]
    if blind:
        raise ConfigurationError(
            f"Rank 0's checkpoint is not visible on every rank. Received: {place}, not there on "
            f"rank {', '.join(blind)}. Keep checkpoints in a folder shared by all hosts."
        )
