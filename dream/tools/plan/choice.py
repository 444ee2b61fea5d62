"""Which strategy to take, and why, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from dream.tools.collectives.sizes import show
from dream.tools.plan.forecast import Forecast

_CLOSE = 1.05
"""Forecasts nearer than that are alike, and the simpler strategy is taken."""
_SIMPLE = ("single", "mirrored", "sharded", "tensor", "pipeline")


def best(forecasts: Sequence[Forecast]) -> Forecast | None:
    """The simplest of the fastest that fit."""
    fitting = [one for one in forecasts if one.fits]
    if not fitting:
        return None
    fastest = min(one.time.step for one in fitting)
    close = [one for one in fitting if one.time.step <= _CLOSE * fastest]
    return min(close, key=_complexity)


def _complexity(one: Forecast) -> tuple[int, int, int]:
    kind = _SIMPLE.index(one.candidate.kind)
    return kind, one.candidate.zero, one.candidate.mesh.model


def sentence(forecasts: Sequence[Forecast]) -> str:
    taken = best(forecasts)
    if taken is None:
        least = min(forecasts, key=lambda one: one.memory.peak)
        return (
            f"Nothing fits: the thriftiest, {least.candidate.label}, needs "
            f"{show(least.memory.peak)} on each device. Take a smaller batch, half precision or "
            "more devices."
        )
    said = (
        f"Take {taken.candidate.label} (--strategy {taken.candidate.request}): "
        f"{show(taken.memory.peak)} on each device, {_ms(taken)} a step"
    )
    plain = next((one for one in forecasts if one.candidate.kind == "mirrored"), None)
    if plain is not None and plain is not taken:
        why = (
            f"mirrored would need {show(plain.memory.peak)}"
            if not plain.fits
            else f"mirrored would take {_ms(plain)}"
        )
        return f"{said}; {why}."
    alone = forecasts[0]
    if taken.candidate.kind == "mirrored" and alone.fits:
        gain = alone.time.step / taken.time.step
        return f"{said}, {gain:.1f} times as fast as one device."
    return f"{said}."


def _ms(one: Forecast) -> str:
    return f"{one.time.step * 1e3:.3g} ms"
