"""From a model's place to its plan."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import final

from dream._spec import Framework
from dream.porting import building
from dream.porting.process import Bench, bench

from . import worker
from .asked import Asked, Training
from .candidates import candidates
from .choice import sentence
from .forecast import Forecast, Sketched, forecast
from .hardware import Hardware, Machine
from .measure import RANKS, can_run
from .scaling import Point, scaling
from .sketch import Told

DEFAULT_BATCH = 32
"""Where neither the model nor the command says one."""


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """uncut: nothing in the model can be divided by tensor parallelism."""

    told: Told
    training: Training
    devices: int
    batch: int
    limit: int | None
    hardware: Hardware
    parameters: int
    uncut: bool
    forecasts: Sequence[Forecast]
    points: Sequence[Point]

    @property
    def sentence(self) -> str:
        return sentence(self.forecasts)

    @property
    def loss(self) -> str:
        return self.told.loss


def room(place: str, timeout: float) -> AbstractContextManager[Bench]:
    """A process that the model is built in. timeout: seconds that one answer may take."""
    building.check(place)
    return bench(f"The model ({place})", timeout=timeout, module=worker.__name__)


def told(asked: Asked, held: Bench) -> Told:
    """Build the model."""
    found: Told = held.get("build", asked.place, asked.training)
    return found


def plan(asked: Asked, machine: Machine, held: Bench, model: Told) -> Plan:
    """Of the model that was built in `held`."""
    sketched = _sketched(held)
    batch = asked.batch_size or model.batch or DEFAULT_BATCH
    hardware = machine(asked.devices)
    limit = hardware.memory if asked.memory is None else asked.memory
    dtype = asked.training.computes_in
    hardware.rates(dtype)
    first = sketched(batch)
    form = len(first.units), bool(first.cuts)
    found = candidates(asked.devices, hardware.per_host, batch, form[0], cut=form[1])
    share = -(-batch // asked.devices)
    return Plan(
        model,
        asked.training,
        asked.devices,
        batch,
        limit,
        hardware,
        sum(p.elements for p in first.parameters),
        not first.cuts,
        [forecast(one, sketched, batch, machine(one.devices), dtype, limit) for one in found],
        scaling(sketched, machine, share, asked.scale, dtype, limit, form),
    )


def forecasts_here(
    asked: Asked, batch: int, machine: Machine, held: Bench, framework: Framework
) -> list[Forecast]:
    """For the ranks that are measured, of the strategies that this version has."""
    sketched, dtype = _sketched(held), asked.training.computes_in
    first = sketched(batch)
    return [
        forecast(one, sketched, batch, machine(ranks), dtype, None)
        for ranks in RANKS
        for one in candidates(ranks, ranks, batch, len(first.units), cut=bool(first.cuts))
        if one.devices == ranks and can_run(framework, one)
    ]


def _sketched(held: Bench) -> Sketched:
    return cache(lambda samples: held.get("sketch", samples))
