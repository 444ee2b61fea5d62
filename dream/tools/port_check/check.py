"""The whole check: two processes, one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from dream._errors import ConfigurationError, unknown
from dream._spec import FRAMEWORKS
from dream.tools.port_check import building
from dream.tools.port_check.judge import judge
from dream.tools.port_check.match import match
from dream.tools.port_check.probe import Array, Inputs
from dream.tools.port_check.process import Bench, bench
from dream.tools.port_check.shake import Weights, shaken
from dream.tools.port_check.side import Side
from dream.tools.port_check.verdict import Report

Model = str | Callable[[], Any]


@final
@dataclass(frozen=True, slots=True)
class Request:
    """What is compared and how; `dream.port_check` says what the fields mean."""

    old: str
    new: str
    batch: Mapping[str, Array]
    mapping: Mapping[str, str] | None = None
    tolerance: float | None = None
    loss: str = "mean_squared"
    seed: int = 0
    as_is: bool = False
    copy: bool = True
    shake: bool = True

    def __post_init__(self) -> None:
        for place in (self.old, self.new):
            building.check(place)
        if not self.inputs:
            raise ConfigurationError(
                "There is nothing to give to the models. Received: a batch with "
                f"{', '.join(self.batch) or 'nothing'}. Name the inputs x; or x0, x1, ...; or as "
                "the models do. y is the target."
            )
        if self.tolerance is not None and not self.tolerance >= 0:
            raise ConfigurationError(
                f"A tolerance is not negative. Received: {self.tolerance}. Give 1e-5, or none."
            )

    @classmethod
    def made(
        cls, old: Model, new: Model, batch: Mapping[str, ArrayLike], **options: Any
    ) -> Request:
        """Functions by their places, the batch as arrays."""
        arrays = {name: np.asarray(x) for name, x in batch.items()}
        return cls(building.place_of(old), building.place_of(new), arrays, **options)

    @property
    def inputs(self) -> Inputs:
        return {name: np.asarray(x) for name, x in self.batch.items() if name != "y"}

    @property
    def target(self) -> Array | None:
        return self.batch.get("y")


def run(request: Request, backends: tuple[str | None, str | None], timeout: float) -> Report:
    """The check in two processes of its own. backends: Keras's; timeout: seconds an answer."""
    for name in backends:
        if name is not None and name not in FRAMEWORKS:
            raise unknown("backend of Keras", name, FRAMEWORKS)
    sides = (("old", request.old, backends[0]), ("new", request.new, backends[1]))
    with ExitStack() as held:
        old, new = (
            held.enter_context(bench(f"The {who} model ({place})", backend, timeout))
            for who, place, backend in sides
        )
        return check(request, old, new)


def check(request: Request, old: Bench, new: Bench) -> Report:
    """The same in processes that are there."""
    old_facts, new_facts = _both(
        old, new, "build", (request.old, request.inputs, request.as_is),
        (request.new, request.inputs, request.as_is),
    )  # fmt: skip
    pairs = match(old_facts.description, new_facts.description, request.mapping, optional=True)
    weights: Weights = old.get("weights")
    changed: list[str] = []
    if request.copy:
        if request.shake:
            weights, changed = shaken(weights, request.seed)
            old.get("load", weights)
        new.get("load", {pair.new.name: weights[pair.old.name] for pair in pairs})
    asked = (request.loss, request.target, request.seed)
    old_passes, new_passes = _both(old, new, "passes", asked, asked)
    sides = (
        Side(old_facts, old_passes, weights),
        Side(new_facts, new_passes, {} if request.copy else new.get("weights")),
    )
    return judge(pairs, *sides, copied=request.copy, allowed=request.tolerance, shaken=changed)


def _both(
    old: Bench, new: Bench, name: str, first: tuple[Any, ...], second: tuple[Any, ...]
) -> tuple[Any, Any]:
    """At once in both processes."""
    old.ask(name, *first)
    new.ask(name, *second)
    try:
        found = old.answer()
    finally:
        other = new.answer()  # read whatever came of the first: the next question's is not this
    return found, other
