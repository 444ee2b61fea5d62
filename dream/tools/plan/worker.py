"""What runs in a process of its own: builds the user's model without values and sketches steps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import signature
from typing import Any, Literal, final

from dream import _registry
from dream._errors import ConfigurationError
from dream.tools.plan.asked import Training
from dream.tools.plan.candidates import Candidate
from dream.tools.plan.sketch import Rehearsal, Sketch, Sketcher, Told
from dream.tools.port_check import building, worker
from dream.tools.port_check.theirs import theirs


@final
class Draughtsman:
    """Its methods are what can be asked."""

    _sketcher: Sketcher

    _place: str

    def build(self, place: str, training: Training) -> Told:
        self._place = place
        with theirs(place):
            function = _found(place)
            make = _registry.load(_registry.SKETCHERS[flavour(place)])
            self._sketcher = make(function, training)
            return self._sketcher.told()

    def sketch(self, batch: int) -> Sketch:
        with theirs(self._place):
            return self._sketcher.sketch(batch)

    def rehearse(self, candidate: Candidate, batch: int) -> list[Rehearsal] | None:
        with theirs(self._place):
            return self._sketcher.rehearse(candidate, batch)


def _found(place: str) -> Callable[[], Any]:
    """The user's function, which must be callable as it stands."""
    try:
        function = building.load(place)
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
            f"What builds the model is called without arguments. Received: {place!r}: {error}. "
            "Give a function whose arguments have defaults."
        ) from error
    return function


def flavour(place: str) -> Literal["torch", "keras"]:
    """Whose model a function will give, by what its file has imported."""
    if "keras" in sys.modules:
        return "keras"
    if "torch" in sys.modules:
        return "torch"
    raise ConfigurationError(
        f"The file imports no framework. Received: {place!r}. Import torch or keras at its top."
    )


if __name__ == "__main__":
    worker.main(sys.argv[1], Draughtsman())
