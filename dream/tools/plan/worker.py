"""Work in other processes: sketch a user's model, calibrate, train what is measured."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from inspect import signature
from pathlib import Path
from typing import Any, Literal, final

import dream
from dream import cluster
from dream._errors import ConfigurationError
from dream.strategies import registry
from dream.tools import frameworks, jobs, user_code
from dream.tools.model_process import serve
from dream.tools.plan.asked import TrainingSpec
from dream.tools.plan.readings import Trial, TrialJob
from dream.tools.plan.sketch import Candidate, ModelFacts, Rehearsal, Sketch, Sketcher
from dream.tools.user_code import explain_errors


def calibrate(folder: Path) -> None:
    """Read this rank's rates, or what calls take here, beside the others."""
    said = jobs.read_asked(folder)
    framework = said["framework"]
    ranks = dream.communicator(framework=framework)
    ranks.barrier()
    found: object
    if "calls" in said:
        found = registry.load(frameworks.CALLS[framework])(said["calls"])
    else:
        found = asdict(registry.load(frameworks.RATES[framework])(said["dtype"]))
    ranks.barrier()
    jobs.answer(folder, ranks.rank, found)


def train(folder: Path) -> None:
    """Train as `folder` says and write down what came of it."""
    said = jobs.read_asked(folder)
    job = TrialJob(**{**said, "training": TrainingSpec(**said["training"])})
    function = user_code.load_function(job.place)
    trial: Trial = registry.load(frameworks.TRIALS[flavour(job.place)])(function, job)
    jobs.answer(folder, cluster.detect().rank, asdict(trial))


@final
class PlanWorker:
    """Works in a process of its own; its methods are what it can be asked."""

    _sketcher: Sketcher

    _place: str

    def build(self, place: str, training: TrainingSpec) -> ModelFacts:
        self._place = place
        with explain_errors(place):
            function = _found(place)
            make = registry.load(frameworks.SKETCHERS[flavour(place)])
            self._sketcher = make(function, training)
            return self._sketcher.told()

    def sketch(self, batch: int) -> Sketch:
        with explain_errors(self._place):
            return self._sketcher.sketch(batch)

    def rehearse(self, candidate: Candidate, batch: int) -> list[Rehearsal] | None:
        with explain_errors(self._place):
            return self._sketcher.rehearse(candidate, batch)


def _found(place: str) -> Callable[[], Any]:
    """Load the user's function, which must be callable as it stands."""
    try:
        function = user_code.load_function(place)
    except ModuleNotFoundError as error:
        if not place.startswith(str(error.name)):
            raise
        raise ConfigurationError(
            f"There is no such module. Received: {place!r}. Name a file as file.py:function."
        ) from error
    try:
        signature(function).bind()
    except TypeError as error:
        raise ConfigurationError(
            f"The function that builds the model is called without arguments. Received: {place!r}: "
            f"{error}. Pass a function whose arguments all have defaults."
        ) from error
    return function


def flavour(place: str) -> Literal["torch", "keras"]:
    """Return whose model a function will give, by what its file has imported."""
    if "keras" in sys.modules:
        return "keras"
    if "torch" in sys.modules:
        return "torch"
    raise ConfigurationError(
        f"The file imports no framework. Received: {place!r}. Import torch or keras at its top."
    )


if __name__ == "__main__":
    task, place = sys.argv[1:]
    if task == "serve":
        serve(place, PlanWorker())
    else:
        {"calibrate": calibrate, "train": train}[task](Path(place))
