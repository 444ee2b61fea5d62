"""More devices than anybody here can try: the same model of memory, traffic and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from .candidates import candidates
from .choice import best
from .forecast import Forecast, Sketched, forecast
from .hardware import Machine


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
    sketched: Sketched,
    machine: Machine,
    share: int,
    counts: Sequence[int],
    dtype: str,
    limit: int | None,
    form: tuple[int, bool],
) -> list[Point]:
    """Weak scaling: share samples for each device. form: how many units the model has, and whether
    tensor parallelism finds something to divide in it."""
    alone = _best(sketched, machine, share, 1, dtype, limit, form)
    base = None if alone is None else alone.samples_per_second
    found = []
    for devices in counts:
        taken = _best(sketched, machine, share, devices, dtype, limit, form)
        each = 0.0 if taken is None else taken.samples_per_second / devices
        base = base or each or None
        found.append(Point(devices, share * devices, taken, each / base if base else 0.0))
    return found


def _best(
    sketched: Sketched,
    machine: Machine,
    share: int,
    devices: int,
    dtype: str,
    limit: int | None,
    form: tuple[int, bool],
) -> Forecast | None:
    hardware, batch = machine(devices), share * devices
    units, cut = form
    found = [
        forecast(one, sketched, batch, hardware, dtype, limit)
        for one in candidates(devices, hardware.per_host, batch, units, cut=cut)
        if one.devices == devices and one.mesh.model <= max(units, hardware.per_host)
    ]
    return best(found)
