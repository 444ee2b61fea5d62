"""Forecast a strategy: its memory, its traffic, and the seconds of a step; and choose one.

Computing goes by the roofline of each operation, sending by latency and bandwidth, and what of the
one hides behind the other is left out. A strategy that was rehearsed has its memory and traffic as
they came out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal, final

from dream._errors import ConfigurationError, Unsupported
from dream.files.sizes import show
from dream.tools.plan.hardware import Hardware
from dream.tools.plan.sketch import Candidate, Phase, Rehearsal, Sending, Sketch, SketchedOp
from dream.tools.plan.traffic import Memory, Message, bytes_of, given, memory, sent, shards, traffic


@final
@dataclass(frozen=True, slots=True)
class Time:
    """The parts of a step's time.

    communication: what is not hidden; idle: a device's, in a pipeline. All in seconds.
    """

    compute: float
    communication: float
    idle: float = 0.0

    @property
    def step(self) -> float:
        return self.compute + self.communication + self.idle


def time(
    candidate: Candidate,
    sketch: Sketch,
    messages: Sequence[Message],
    hardware: Hardware,
    dtype: str,
) -> Time:
    """sketch: as for `memory`."""
    pages = paged(max(sketch.forward_peak, sketch.backward_peak), sketch.largest, hardware)
    forward = _seconds(sketch, "forward", hardware, dtype)
    backward = _seconds(sketch, "backward", hardware, dtype)
    update = _seconds(sketch, "update", hardware, dtype, _stepped(candidate, sketch))
    sending = (
        shown(messages, "forward", forward, hardware)
        + shown(messages, "backward", backward, hardware)
        + shown(messages, "alone", 0.0, hardware)
    )
    return Time(forward + backward + update + pages, sending)


def paged(peak: int, largest: int, hardware: Hardware) -> float:
    """Return the seconds for memory that a CPU's process gives back at the end of a step and must
    be given
    anew: glibc keeps twice the largest block that there was (mallopt(3), M_TRIM_THRESHOLD)."""
    return hardware.fresh * max(0, peak - 2 * largest)


def _seconds(
    sketch: Sketch, phase: Phase, hardware: Hardware, dtype: str, share: float = 1.0
) -> float:
    return sum(hardware.seconds(op, dtype, share) for op in sketch.ops if op.phase == phase)


def _stepped(candidate: Candidate, sketch: Sketch) -> float:
    """Return what share of the parameters a device steps."""
    trained = [p for p in sketch.parameters if p.trained]
    whole = max(1, bytes_of(trained))
    if candidate.kind == "sharded":
        return shards(trained, candidate.mesh.model) / whole
    return 1.0


def shown(
    messages: Iterable[Message],
    when: str,
    behind: float,
    hardware: Hardware,
) -> float:
    """Return what cannot hide behind computing: what is longer than it, and the first or last call
    at least, which has nothing to hide behind."""
    mine = [message for message in messages if message.when == when]
    total = sum(message.seconds(hardware) for message in mine)
    if not hardware.overlaps or when == "alone":
        return total
    least = max((message.seconds(hardware) / message.count for message in mine), default=0.0)
    return max(total - behind, least)


Rehearsals = Sequence[Rehearsal]
"""Of the ranks that differ; one at least."""


def memory_of(candidate: Candidate, rehearsals: Rehearsals) -> Memory:
    """Of the rank that needs most."""
    most = max(rehearsals, key=lambda one: one.peak)
    held = most.parameters, most.gradients, most.state
    if candidate.offload:  # beside what is gathered, its shard comes and a gradient's goes
        peak = most.working + 2 * _largest_shard(candidate, most)
        return Memory(0, 0, 0, peak, peak, sum(held))
    return Memory(*held, most.activations, most.peak)


def _largest_shard(candidate: Candidate, one: Rehearsal) -> int:
    """Of the parameters that are gathered at once, in bytes."""
    gathered = [sent.size for sent in one.sent if sent.operation == "all_gather"]
    return max(gathered, default=0) // candidate.mesh.model


def messages_of(candidate: Candidate, rehearsals: Rehearsals) -> list[Message]:
    """Of the rank that gives most."""
    rows = [[_message(candidate, one) for one in told.sent] for told in rehearsals]
    busiest = max(rows, key=lambda row: sum(message.count * message.size for message in row))
    return [message for message in busiest if message.ranks > 1 and message.size]


def _message(candidate: Candidate, one: Sending) -> Message:
    """Gathering and reducing of shards, and adding shards up over groups, travel behind the layers
    before and after them; what parts of a layer add up is waited for."""
    mesh = candidate.mesh
    ranks, stride = (mesh.data, mesh.model) if one.axis == "data" else (mesh.model, 1)
    travels = one.operation in ("all_gather", "reduce_scatter") or one.axis == "data"
    hides = candidate.kind == "sharded" and travels
    behind = one.phase if hides and one.phase != "update" else "alone"
    return Message(one.operation, one.size, ranks, stride, one.count, behind)


def time_of(candidate: Candidate, rehearsals: Rehearsals, hardware: Hardware, dtype: str) -> Time:
    """Of the rank that computes longest."""
    slowest = max(rehearsals, key=lambda one: _rehearsed_seconds(one, hardware, dtype))
    messages = [_message(candidate, one) for one in slowest.sent]
    if candidate.offload:
        messages += _copies(slowest)
    pages = paged(slowest.activations, slowest.largest, hardware)
    if candidate.kind == "pipeline":
        found = _pipelined(candidate, slowest, messages, hardware, dtype)
        return replace(found, compute=found.compute + pages)
    phases = {
        phase: _rehearsed_seconds(slowest, hardware, dtype, phase)
        for phase in ("forward", "backward", "update")
    }
    if candidate.offload:  # by the host, which is as quick as its memory
        moved = [op.moved for op in slowest.ops if op.phase == "update"]
        phases["update"] = sum(moved) / hardware.host_bandwidth + len(moved) * hardware.launch
    sending = sum(
        shown(messages, when, phases.get(when, 0.0), hardware)
        for when in ("forward", "backward", "alone")
    )
    return Time(sum(phases.values()) + pages, sending)


def _alone(told: Rehearsals) -> Rehearsals:
    """Of a device that holds both shards of the two that were rehearsed."""
    return [
        replace(
            one, parameters=2 * one.parameters, gradients=2 * one.gradients, state=2 * one.state,
            ops=tuple(replace(o, moved=2 * o.moved) if o.phase == "update" else o for o in one.ops),
        )
        for one in told
    ]  # fmt: skip


def _copies(one: Rehearsal) -> list[Message]:
    """Of shards that lie on the host: to the device before they are gathered, in forward and again
    in backward, and their gradients back."""
    found = []
    phases: tuple[Literal["forward", "backward"], ...] = ("forward", "backward")
    for phase in phases:
        gathers = [s.count for s in one.sent if s.operation == "all_gather" and s.phase == phase]
        count = max(1, sum(gathers))
        found.append(Message("copy", one.parameters / count, 2, count=count, when=phase))
    return [*found, Message("copy", one.gradients / count, 2, count=count, when="backward")]


def _rehearsed_seconds(one: Rehearsal, hardware: Hardware, dtype: str, phase: str = "") -> float:
    return sum(hardware.seconds(op, dtype) for op in one.ops if phase in ("", op.phase))


def _pipelined(
    candidate: Candidate,
    slowest: Rehearsal,
    messages: Sequence[Message],
    hardware: Hardware,
    dtype: str,
) -> Time:
    """M microbatches through S stages take as long as M + S - 1 through the slowest: a share of
    (S-1)/(M+S-1) is idle (Huang et al., arXiv:1811.06965, section 2.3; under 1F1B too, Narayanan
    et al., arXiv:2104.04473, section 2.2)."""
    parts, count = candidate.mesh.model, candidate.microbatches
    update = _rehearsed_seconds(slowest, hardware, dtype, "update")
    one = (_rehearsed_seconds(slowest, hardware, dtype) - update) / count
    passing = [m for m in messages if m.operation in ("send", "receive")]
    both_ways = sum(m.seconds(hardware) for m in passing) / count / 2
    shown_passing = both_ways * (parts - 1 if hardware.overlaps else count + parts - 1)
    summed = sum(m.seconds(hardware) for m in messages if m.operation == "all_reduce")
    return Time(count * one + update, shown_passing + summed, (parts - 1) * one)


@final
@dataclass(frozen=True, slots=True)
class Source:
    """Sketches and rehearsals of a model. sketched: a number of samples -> a step on one device
    with so many.
    rehearsed: a candidate and a share's samples -> its step by its own code; None for what is
    reckoned from a sketch. Raises what the strategy raises on such a model."""

    sketched: Callable[[int], Sketch]
    rehearsed: Callable[[Candidate, int], Rehearsals | None]


@final
@dataclass(frozen=True, slots=True)
class Forecast:
    """A training step under one strategy, foretold.

    sent: bytes that a device sends in a step; given: to each collective. batch: the global one.
    limit: bytes that a device has, or None. sources: of the figures that times rest on.
    """

    candidate: Candidate
    memory: Memory
    sent: int
    given: Mapping[str, int]
    time: Time
    batch: int
    limit: int | None
    sources: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return self.limit is None or self.memory.peak <= self.limit

    @property
    def samples_per_second(self) -> float:
        return self.batch / self.time.step


def ops_of(candidates: Iterable[Candidate], source: Source, batch: int) -> Iterator[SketchedOp]:
    """Yield the operations of all of them that there are. batch: the global one."""
    for one in candidates:
        try:
            told = source.rehearsed(one, ceil(batch / one.shares))
        except (Unsupported, ConfigurationError):
            continue  # said when it is foretold
        if told is None:
            yield from source.sketched(share_of(one, batch)).ops
        else:
            yield from (op for rehearsal in told for op in rehearsal.ops)


def share_of(candidate: Candidate, batch: int) -> int:
    """Samples that a device works on at a time: the largest share of a batch."""
    return ceil(ceil(batch / candidate.shares) / candidate.microbatches)


def forecast(
    candidate: Candidate,
    source: Source,
    batch: int,
    hardware: Hardware,
    dtype: str,
    limit: int | None,
) -> Forecast:
    """batch: the global one."""
    hardware = hardware.under(candidate.strategy)
    told = source.rehearsed(candidate, ceil(batch / candidate.shares))
    if told is not None and candidate.offload and candidate.devices == 1:
        told = _alone(told)
    needs, messages, takes = (
        _reckoned(candidate, source.sketched(share_of(candidate, batch)), hardware, dtype)
        if told is None
        else (
            memory_of(candidate, told),
            messages_of(candidate, told),
            time_of(candidate, told, hardware, dtype),
        )
    )
    return Forecast(
        candidate,
        needs,
        sent(messages),
        given(messages),
        takes,
        batch,
        limit,
        hardware.sources,
    )


def _reckoned(
    candidate: Candidate, sketch: Sketch, hardware: Hardware, dtype: str
) -> tuple[Memory, list[Message], Time]:
    messages = traffic(candidate, sketch)
    takes = time(candidate, sketch, messages, hardware, dtype)
    return memory(candidate, sketch), messages, takes


_CLOSE = 1.05
"""Forecasts nearer than that are alike, and the simpler strategy is taken."""
_SIMPLE = ("single", "mirrored", "sharded", "tensor", "pipeline")


def best(forecasts: Sequence[Forecast]) -> Forecast | None:
    """Return the simplest of the fastest that fit."""
    fitting = [one for one in forecasts if one.fits]
    if not fitting:
        return None
    fastest = min(one.time.step for one in fitting)
    close = [one for one in fitting if one.time.step <= _CLOSE * fastest]
    return min(close, key=_complexity)


def _complexity(one: Forecast) -> tuple[int, int, bool, bool, int]:
    of = one.candidate
    groups = of.kind == "sharded" and of.mesh.data > 1
    return _SIMPLE.index(of.kind), of.zero, of.offload, groups, of.mesh.model


def sentence(
    forecasts: Sequence[Forecast], request: Callable[[str], str] = lambda strategy: strategy
) -> str:
    """Say which to take. request: gives a strategy's, with all that it is to be told."""
    taken = best(forecasts)
    if taken is None:
        least = min(forecasts, key=lambda one: one.memory.peak)
        return (
            f"Nothing fits: the thriftiest, {least.candidate.label}, needs "
            f"{show(least.memory.peak)} on each device. Take a smaller batch, half precision or "
            "more devices."
        )
    said = (
        f"Take {taken.candidate.label} (--strategy {request(taken.candidate.request)}): "
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
