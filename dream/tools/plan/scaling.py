"""More devices than anybody here can try: the same model of memory, traffic and time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import final

from dream._errors import ConfigurationError, Unsupported
from dream.tools.plan.candidates import Candidate, Kind, candidates
from dream.tools.plan.choice import best
from dream.tools.plan.forecast import Forecast, Source, forecast, ops_of
from dream.tools.plan.hardware import Hardware, Machine

_STAGES = 64
"""Of a pipeline at most: longer ones are rehearsed for minutes."""


@final
@dataclass(frozen=True, slots=True)
class Point:
    """efficiency: samples a second of each device, of what one has alone where it fits, else of
    what each has at the first point. taken: None where nothing fits."""

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
    kinds: Collection[Kind],
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
    kinds: Collection[Kind],
) -> Forecast | None:
    hosts, batch = machine(devices, ()), share * devices
    tried = [
        one
        for one in candidates(devices, hosts.per_host, batch, kinds)
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
