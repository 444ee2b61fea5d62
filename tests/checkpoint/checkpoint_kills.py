"""Two ranks that do nothing but save, to the disk and in memory, and are killed at it: FOLDER FULL.
NumPy's arrays alone, so that a start takes no time. FULL: a step at which a disk has no room; 0 for
none."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dream import DreamError, cluster
from dream.checkpoint import job
from dream.checkpoint.checkpointer import Checkpointer, Parts
from dream.checkpoint.commits import Commits
from dream.checkpoint.content import OptimizerState
from dream.checkpoint.saves import Saves
from dream.checkpoint.storage.allotment import Wanted, every_array
from dream.files.store import PatientStore

NAMES = [f"layer{index}.weight" for index in range(6)]


class Ranks:
    """Talk over the job's store."""

    def __init__(self) -> None:
        place = cluster.detect()
        self.rank, self.world_size = place.rank, place.world_size
        self._store = PatientStore(cluster.rendezvous(place))
        self._calls = 0

    def all_gather_object(self, value: Any) -> list[Any]:
        self._calls += 1
        self._store.put(f"kills/{self._calls}/{self.rank}", json.dumps(value).encode())
        found = []
        for rank in range(self.world_size):
            while (said := self._store.find(f"kills/{self._calls}/{rank}")) is None:
                time.sleep(0.001)
            found.append(json.loads(said))
        return found

    def broadcast_object(self, value: Any) -> Any:
        return self.all_gather_object(value)[0]


class Arrays(Checkpointer):
    """Of a dict."""

    api = "torch"

    def facts(self) -> dict[str, Any]:
        return {}

    def types(self, model: Any) -> dict[str, str]:
        return {name: array.dtype.name for name, array in model.items()}

    def model(self, model: Any, wanted: Wanted = every_array) -> dict[str, Any]:
        return {n: a.copy() for n, a in model.items() if wanted(n, a.nbytes)}

    def check_model(self, model: Any, arrays: Any) -> None:
        assert {*model} == {*arrays}

    def set_model(self, model: Any, arrays: Any) -> None:
        for name, array in arrays.items():
            model[name][...] = array

    def describe(self, model: Any) -> Any:
        return None

    def optimizer(self, optimizer: Any, models: Any, wanted: Any = None) -> OptimizerState:
        raise NotImplementedError

    def check_optimizer(self, optimizer: Any, models: Any, state: Any) -> None: ...

    def set_optimizer(self, optimizer: Any, models: Any, state: Any) -> None: ...

    def random(self, models: Any) -> dict[str, Any]:
        return {}

    def set_random(self, state: Mapping[str, Any], models: Any) -> None: ...


def tell(path: Path, word: object) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(str(word))
    part.replace(path)


def main(folder: str, full: str) -> None:
    ranks: Any = Ranks()
    saves, held = Saves(ranks, least=1), Arrays()
    commits = Commits(ranks, Path(folder), least=1)
    weights = {name: np.zeros(60_000, np.float32) for name in NAMES}
    parts = Parts({"": weights})
    tell(Path(f"{folder}.rank{ranks.rank}"), os.getpid())
    found = job.load(folder, parts, held, ranks, commits=commits)
    step = found.step if found else 0
    assert all((array == step).all() for array in weights.values())
    kept = commits.folder and Path(commits.folder.path, "said")
    assert kept is None or not kept.exists() or step >= int(kept.read_text()), "a commit is lost"
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    first = step
    while True:
        step += 1
        for array in weights.values():
            array[...] = step
        if kept is not None:
            commits.take(parts, step, held, extra={}, facts={})
            while not commits._last.settled:
                time.sleep(0.001)
            if ranks.rank == 0 and commits._last.error is None:
                tell(kept, step)
        lacks = step - first == int(full) and ranks.rank == step % 2
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000 if lacks else limit[0], limit[1]))
        saving = saves.save(folder, parts, step, held, extra={}, facts={}, keep=2, best=None)
        for array in weights.values():
            array[...] = -1  # training goes on
        try:
            saving.wait()
        except DreamError as error:
            if "File too large" not in str(error):
                raise
            if ranks.rank == 0:
                tell(Path(f"{folder}.refused"), step)
            saves = Saves(ranks, least=1)
            continue
        if ranks.rank == 0:
            tell(Path(f"{folder}.saved"), step)


if __name__ == "__main__":
    main(*sys.argv[1:])
