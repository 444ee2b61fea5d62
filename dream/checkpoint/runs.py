"""Runs of wandb and mlflow that a training tells in, which it goes on with where it goes on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from dream._errors import ConfigurationError
from dream.checkpoint.storage.folder import CheckpointFolder
from dream.cluster import settings

_WANDB, _MLFLOW = "wandb", "mlflow"
_RUN, _RESUME = "WANDB_RUN_ID", "WANDB_RESUME"
_ASKED = {_WANDB: _RUN, _MLFLOW: "MLFLOW_RUN_ID"}
"""Variables by which each library is told which run to go on with; mlflow removes its own once it
has."""


def under_way() -> dict[str, str]:
    """Return by library the id of the run that is under way in this process."""
    found: dict[str, str] = {}
    run = getattr(sys.modules.get(_WANDB), "run", None)
    if run is not None and not getattr(run, "disabled", False):
        found[_WANDB] = str(run.id)
        settings.unset_if(_RUN, str(run.id))  # a further one of this process is another
    active = getattr(sys.modules.get(_MLFLOW), "active_run", lambda: None)()
    if active is not None:
        found[_MLFLOW] = str(active.info.run_id)
    return found


def variables(runs: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which runs that begin go on with these."""
    found = {_ASKED[library]: name for library, name in runs.items() if library in _ASKED}
    return {**found, _RESUME: "allow"} if _WANDB in runs else found


def variables_from(folder: Path) -> dict[str, str]:
    """Return those of the newest checkpoint of a folder; none where it holds none."""
    held = CheckpointFolder(folder)
    try:
        place = held.newest()
        return {} if place is None else variables(held.state(place).get("runs", {}))
    except ConfigurationError:  # said where it is loaded
        return {}


def go_on(runs: Mapping[str, str]) -> None:
    """Have the next runs of this process be these, where no others are asked for or under way."""
    begun = under_way()
    settings.set_if_unset(variables({k: v for k, v in runs.items() if k not in begun}))
