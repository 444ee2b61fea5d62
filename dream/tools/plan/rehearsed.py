"""A strategy that was rehearsed: its memory and traffic as they came out, its time from both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dream.tools.plan.candidates import Candidate
from dream.tools.plan.hardware import Hardware
from dream.tools.plan.memory import Memory
from dream.tools.plan.sketch import Rehearsal, Sending
from dream.tools.plan.timing import Time, paged, shown
from dream.tools.plan.traffic import Message

Rehearsals = Sequence[Rehearsal]
"""Of the ranks that differ; one at least."""


def memory_of(rehearsals: Rehearsals) -> Memory:
    """Of the rank that needs most."""
    most = max(rehearsals, key=lambda one: one.peak)
    return Memory(most.parameters, most.gradients, most.state, most.activations, most.peak)


def messages_of(candidate: Candidate, rehearsals: Rehearsals) -> list[Message]:
    """Of the rank that gives most."""
    rows = [[_message(candidate, one) for one in told.sent] for told in rehearsals]
    busiest = max(rows, key=lambda row: sum(message.count * message.size for message in row))
    return [message for message in busiest if message.ranks > 1 and message.size]


def _message(candidate: Candidate, one: Sending) -> Message:
    """Gathering and reducing of shards travel behind the layers before and after them; what parts
    of a layer add up is waited for."""
    mesh = candidate.mesh
    ranks, stride = (mesh.data, mesh.model) if one.axis == "data" else (mesh.model, 1)
    hides = candidate.kind == "sharded" and one.operation in ("all_gather", "reduce_scatter")
    behind = one.phase if hides and one.phase != "update" else "alone"
    return Message(one.operation, one.size, ranks, stride, one.count, behind)


def time_of(candidate: Candidate, rehearsals: Rehearsals, hardware: Hardware, dtype: str) -> Time:
    """Of the rank that computes longest."""
    slowest = max(rehearsals, key=lambda one: _seconds(one, hardware, dtype))
    messages = [_message(candidate, one) for one in slowest.sent]
    pages = paged(slowest.activations, slowest.largest, hardware)
    if candidate.kind == "pipeline":
        found = _pipelined(candidate, slowest, messages, hardware, dtype)
        return replace(found, compute=found.compute + pages)
    phases = {
        phase: _seconds(slowest, hardware, dtype, phase)
        for phase in ("forward", "backward", "update")
    }
    sending = sum(
        shown(messages, when, phases.get(when, 0.0), hardware)
        for when in ("forward", "backward", "alone")
    )
    return Time(sum(phases.values()) + pages, sending)


def _seconds(one: Rehearsal, hardware: Hardware, dtype: str, phase: str = "") -> float:
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
    update = _seconds(slowest, hardware, dtype, "update")
    one = (_seconds(slowest, hardware, dtype) - update) / count
    passing = [m for m in messages if m.operation in ("send", "receive")]
    both_ways = sum(m.seconds(hardware) for m in passing) / count / 2
    shown_passing = both_ways * (parts - 1 if hardware.overlaps else count + parts - 1)
    summed = sum(m.seconds(hardware) for m in messages if m.operation == "all_reduce")
    return Time(count * one + update, shown_passing + summed, (parts - 1) * one)
