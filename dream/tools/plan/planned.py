"""Plan a model: every strategy on the devices asked for, and more devices than anybody can try."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import final

from dream._errors import ConfigurationError, Unsupported
from dream._topology import Mesh
from dream.tools import user_code
from dream.tools.model_process import ModelProcess, open_process
from dream.tools.plan import worker
from dream.tools.plan.asked import PlanRequest, TrainingSpec
from dream.tools.plan.forecast import Forecast, Source, best, forecast, ops_of, sentence
from dream.tools.plan.goodput import Goodput, Reliability, goodput
from dream.tools.plan.hardware import Hardware, Machine
from dream.tools.plan.measure import RANKS, can_run
from dream.tools.plan.sketch import Candidate, ModelFacts, StrategyKind, candidates, like

_STAGES = 64
"""Of a pipeline at most: longer ones are rehearsed for minutes."""


@final
@dataclass(frozen=True, slots=True)
class Point:
    """The best plan for one number of devices.

    efficiency: samples a second of each device, of what one has alone where it fits, else of
    what each has at the first point. taken: None where nothing fits.
    """

    devices: int
    batch: int
    taken: Forecast | None
    efficiency: float


def scaling(
    source: Source,
    machine: Machine,
    share: int,
    counts: Sequence[int],
    dtype: str,
    limit: int | None,
    kinds: Collection[StrategyKind],
) -> list[Point]:
    """Weak scaling: share samples for each device."""
    alone = _best(source, machine, share, 1, dtype, limit, kinds)
    base = None if alone is None else alone.samples_per_second
    found = []
    for devices in counts:
        taken = _best(source, machine, share, devices, dtype, limit, kinds)
        each = 0.0 if taken is None else taken.samples_per_second / devices
        base = base or each or None
        found.append(Point(devices, share * devices, taken, each / base if base else 0.0))
    return found


def _best(
    source: Source,
    machine: Machine,
    share: int,
    devices: int,
    dtype: str,
    limit: int | None,
    kinds: Collection[StrategyKind],
) -> Forecast | None:
    hosts, batch = machine(devices, ()), share * devices
    offloads = hosts.host is not None
    tried = [
        one
        for one in candidates(devices, hosts.per_host, batch, kinds, offloads=offloads)
        if one.devices == devices and _sensible(one, hosts)
    ]
    hardware = machine(devices, ops_of(tried, source, batch))
    found = []
    for one in tried:
        try:
            found.append(forecast(one, source, batch, hardware, dtype, limit))
        except (Unsupported, ConfigurationError):
            continue
    return best(found)


def _sensible(one: Candidate, hardware: Hardware) -> bool:
    """Tensor parallelism stays within a host (Narayanan et al., arXiv:2104.04473, takeaway 1)."""
    parts = one.mesh.model
    return not one.split or parts <= (hardware.per_host if one.kind == "tensor" else _STAGES)


DEFAULT_BATCH = 32
"""Where neither the model nor the command says one."""


@final
@dataclass(frozen=True, slots=True)
class ModelPlan:
    """All that is foretold of a model.

    left_out: by strategy, why the model cannot be trained so.
    """

    told: ModelFacts
    training: TrainingSpec
    devices: int
    batch: int
    limit: int | None
    hardware: Hardware
    parameters: int
    left_out: Mapping[str, str]
    forecasts: Sequence[Forecast]
    points: Sequence[Point]
    reliability: Reliability | None = None

    @property
    def sentence(self) -> str:
        return sentence(self.forecasts, self.training.request)

    @property
    def loss(self) -> str:
        return self.told.loss

    @property
    def goodputs(self) -> Sequence[tuple[Forecast, Goodput]]:
        """What is taken for each number of devices, and what failures leave of it."""
        if self.reliability is None:
            return []
        taken = [best(self.forecasts), *(point.taken for point in self.points)]
        return [
            (one, goodput(self.reliability, one.candidate.devices))
            for one in taken
            if one is not None
        ]


def open_model(place: str, timeout: float) -> AbstractContextManager[ModelProcess]:
    """Open a process that the model is built in. timeout: seconds that one answer may take."""
    user_code.check_place(place)
    return open_process(f"The model ({place})", worker.__name__, place, timeout)


def build_model(asked: PlanRequest, held: ModelProcess) -> ModelFacts:
    """Build the model."""
    found: ModelFacts = held.get("build", asked.place, asked.training)
    return found


def plan(asked: PlanRequest, machine: Machine, held: ModelProcess, model: ModelFacts) -> ModelPlan:
    """Of the model that was built in `held`."""
    source = source_of(held)
    batch = asked.batch_size or model.batch or DEFAULT_BATCH
    hardware = machine(asked.devices, ())
    limit = hardware.memory if asked.memory is None else asked.memory
    dtype = asked.training.computes_in
    hardware.rates(dtype)
    first = source.sketched(batch)
    offloads = hardware.host is not None
    found = candidates(asked.devices, hardware.per_host, batch, model.kinds, offloads=offloads)
    forecasts, left_out = _each(found, source, batch, machine, dtype, limit)
    if all(one.candidate.devices != asked.devices for one in forecasts):
        raise _no_mesh(asked.devices, batch, left_out)
    share = -(-batch // asked.devices)
    return ModelPlan(
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
        asked.reliability,
    )


def _no_mesh(devices: int, batch: int, left_out: Mapping[str, str]) -> ConfigurationError:
    reasons = "".join(f"\n  {request}: {reason}" for request, reason in left_out.items())
    return ConfigurationError(
        f"No strategy fits this number of devices. Received: --devices {devices}, global batch "
        f"{batch}. Give a --batch-size of {devices} or more.{reasons}"
    )


def _each(
    found: Sequence[Candidate],
    source: Source,
    batch: int,
    machine: Machine,
    dtype: str,
    limit: int | None,
) -> tuple[list[Forecast], dict[str, str]]:
    """Return forecasts, and by label why there is none."""
    forecasts, left_out = [], {}
    hardware = {
        devices: machine(
            devices, ops_of([one for one in found if one.devices == devices], source, batch)
        )
        for devices in {one.devices for one in found}
    }
    for one in found:
        try:
            one_forecast = forecast(one, source, batch, hardware[one.devices], dtype, limit)
        except (Unsupported, ConfigurationError) as error:
            left_out[one.request] = str(error)
        else:
            forecasts.append(one_forecast)
    return forecasts, left_out


def forecasts_here(
    asked: PlanRequest, batch: int, machine: Machine, held: ModelProcess, model: ModelFacts
) -> list[Forecast]:
    """For the ranks that are measured, of the strategies that this version has; hybrid shards too,
    as on two hosts."""
    source, dtype = source_of(held), asked.training.computes_in
    found = [
        one
        for ranks in RANKS
        for one in candidates(ranks, ranks, batch, model.kinds)
        if one.devices == ranks and can_run(model.framework, one)
    ]
    hybrid = Candidate("sharded", Mesh(2, RANKS[-1] // 2), zero=3)
    if hybrid.kind in model.kinds and batch >= hybrid.devices:
        found.append(hybrid)
    return _each(found, source, batch, machine, dtype, None)[0]


def source_of(held: ModelProcess) -> Source:
    """Return what is told of the model there."""
    sketched = cache(lambda samples: held.get("sketch", samples))
    rehearsed = cache(lambda one, samples: held.get("rehearse", one, samples))
    return Source(sketched, lambda one, samples: rehearsed(like(one), samples))
