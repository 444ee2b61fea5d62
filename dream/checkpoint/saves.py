"""The checkpoints that one training writes: what each rank holds is copied between two steps, and
written while the next ones are made."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from dream._errors import DreamError
from dream.checkpoint import background, runs
from dream.checkpoint.background import Saving, Work, Writing
from dream.checkpoint.checkpointer import Checkpointer, Parts
from dream.checkpoint.content import NAMES, CheckpointContent, named_in
from dream.checkpoint.storage.allotment import LEAST, Allotment, Wanted
from dream.checkpoint.storage.folder import (
    MODEL,
    OPTIMIZER,
    REPLICAS,
    Begun,
    CheckpointFolder,
    arrays_of,
    state_of,
)
from dream.collectives import Communicator
from dream.collectives.rank_zero import at_rank_0
from dream.data import tracked


@final
class Saves:
    """Writes a training's checkpoints, one at a time. Every rank calls each method."""

    def __init__(self, ranks: Communicator, *, least: int = LEAST) -> None:
        """least: bytes that each rank writes, before one more of them does."""
        self._ranks, self._least = ranks, least
        self._last: Writing | None = None

    def save(
        self,
        path: str | os.PathLike[str],
        parts: Parts,
        step: int,
        held: Checkpointer,
        *,
        extra: Mapping[str, Any],
        facts: Mapping[str, Any],
        keep: int,
        best: str | None,
    ) -> Saving:
        """Begin to write a checkpoint, once the one before is whole; what was refused to that is
        raised here. An error is every rank's."""
        self.finish()
        background.settle()
        folder = CheckpointFolder(path, keep=keep, best=best)
        if not held.writes:
            return Saving(folder.place_of(step), None)
        allotment = Allotment(self._ranks.rank, self._ranks.world_size, least=self._least)
        checkpoint = taken(parts, step, held, allotment, extra=extra, facts=facts)
        state: dict[str, Any] = {}

        def begin() -> str:
            state.update(state_of(checkpoint))
            begun = folder.begin(step)
            return json.dumps([str(begun.part), str(begun.place)])

        part, place = json.loads(at_rank_0(self._ranks, begin))
        begun = Begun(Path(part), Path(place))
        work = Work(folder, begun, allotment, arrays_of(checkpoint), state)
        self._last = background.begin(work, self._ranks)
        return Saving(begun.place, self._last)

    def finish(self) -> None:
        """Wait for the one that is being written. What was refused to it is raised, once."""
        last, self._last = self._last, None
        if last is not None:
            last.finish()


def taken(
    parts: Parts, step: int, held: Checkpointer, allotment: Allotment, *,
    extra: Mapping[str, Any], facts: Mapping[str, Any],
) -> CheckpointContent:  # fmt: skip
    """Copy what this rank writes of everything."""

    def wanted(kind: str, key: str) -> Wanted:
        return lambda name, size, owner=None: allotment.takes(
            kind, named_in(key, name), size, owner
        )

    data = None if parts.data is None else tracked.state_of(parts.data)
    return CheckpointContent(
        step=step,
        models={key: held.model(m, wanted(MODEL, key)) for key, m in parts.models.items()},
        optimizers={
            key: held.optimizer(each, parts.models, wanted(OPTIMIZER, key))
            for key, each in parts.optimizers.items()
        },
        schedulers={name: each.state_dict() for name, each in parts.schedulers.items()},
        data=data,
        random=held.random(parts.models),
        extra=extra,
        facts={"global_batch": _global_batch(data), **facts, **held.facts(), NAMES: held.api},
        dtypes={name: held.types(model) for name, model in parts.models.items()},
        runs=runs.under_way(),
        layers={name: _described(held, model) for name, model in parts.models.items()},
        replicas=held.replicas(parts, wanted(REPLICAS, "")),
    )


def _global_batch(data: Mapping[str, Any] | None) -> Any:
    """Return the samples of a global batch, as the data's state says; by name of several loaders,
    and None where it does not."""
    if data is None or "epoch" in data:
        return data and data.get("batch_size")
    return {name: each.get("batch_size") for name, each in data.items()}


def _described(held: Checkpointer, model: Any) -> Any:
    try:
        return held.describe(model)
    except DreamError as error:
        return str(error)
