"""From a model's place to its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import final

from dream._errors import ConfigurationError, Unsupported
from dream.tools.plan import worker
from dream.tools.plan.asked import Asked, Training
from dream.tools.plan.candidates import Candidate, candidates, like
from dream.tools.plan.choice import sentence
from dream.tools.plan.forecast import Forecast, Source, forecast, ops_of
from dream.tools.plan.hardware import Hardware, Machine
from dream.tools.plan.measure import RANKS, can_run
from dream.tools.plan.scaling import Point, scaling
from dream.tools.plan.sketch import Told
from dream.tools.port_check import building
from dream.tools.port_check.process import Bench, bench

DEFAULT_BATCH = 32
"""Where neither the model nor the command says one."""


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """left_out: by strategy, why the model cannot be trained so."""

    told: Told
    training: Training
    devices: int
    batch: int
    limit: int | None
    hardware: Hardware
    parameters: int
    left_out: Mapping[str, str]
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
    source = source_of(held)
    batch = asked.batch_size or model.batch or DEFAULT_BATCH
    hardware = machine(asked.devices, ())
    limit = hardware.memory if asked.memory is None else asked.memory
    dtype = asked.training.computes_in
    hardware.rates(dtype)
    first = source.sketched(batch)
    found = candidates(asked.devices, hardware.per_host, batch, model.kinds)
    forecasts, left_out = _each(found, source, batch, machine, dtype, limit)
    if all(one.candidate.devices != asked.devices for one in forecasts):
        raise _no_mesh(asked.devices, batch, left_out)
    share = -(-batch // asked.devices)
    return Plan(
        model,
        asked.training,
        asked.devices,
        batch,
        limit,
        hardware,
        sum(p.elements for p in first.parameters),
        left_out,
        forecasts,
        scaling(source, machine, share, asked.scale, dtype, limit, model.kinds),
    )


def _no_mesh(devices: int, batch: int, left_out: Mapping[str, str]) -> ConfigurationError:
    reasons = "".join(f"\n  {request}: {reason}" for request, reason in left_out.items())
    return ConfigurationError(
        f"No strategy fits so many devices. Received: --devices {devices}, global batch {batch}. "
        f"Give a --batch-size of {devices} or more.{reasons}"
    )


def _each(
    found: Sequence[Candidate],
    source: Source,
    batch: int,
    machine: Machine,
    dtype: str,
    limit: int | None,
) -> tuple[list[Forecast], dict[str, str]]:
    """Forecasts, and by label why there is none."""
    forecasts, left_out = [], {}
    hardware = {
        devices: machine(
            devices, ops_of([one for one in found if one.devices == devices], source, batch)
        )
        for devices in {one.devices for one in found}
    }
    for one in found:
        try:
            told = forecast(one, source, batch, hardware[one.devices], dtype, limit)
        except (Unsupported, ConfigurationError) as error:
            left_out[one.request] = str(error)
        else:
            forecasts.append(told)
    return forecasts, left_out


def forecasts_here(
    asked: Asked, batch: int, machine: Machine, held: Bench, model: Told
) -> list[Forecast]:
    """For the ranks that are measured, of the strategies that this version has."""
    source, dtype = source_of(held), asked.training.computes_in
    found = [
        one
        for ranks in RANKS
        for one in candidates(ranks, ranks, batch, model.kinds)
        if one.devices == ranks and can_run(model.framework, one)
    ]
    return _each(found, source, batch, machine, dtype, None)[0]


def source_of(held: Bench) -> Source:
    """What is told of the model there."""
    sketched = cache(lambda samples: held.get("sketch", samples))
    told = cache(lambda one, samples: held.get("rehearse", one, samples))
    return Source(sketched, lambda one, samples: told(like(one), samples))
