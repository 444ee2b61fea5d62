"""Bytes on each device, strategy by strategy: what dream's adapters hold, not what could be held.

Where every device has the whole model; what splits it is rehearsed. Peaks are those of `Sketch`,
read for the share of the batch that a device has. ZeRO's stages: Rajbhandari et al., SC 2020,
arXiv:1910.02054.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import final

from dream.tools.plan.candidates import Candidate
from dream.tools.plan.sketch import Parameter, Sketch


@final
@dataclass(frozen=True, slots=True)
class Memory:
    """activations: what a step needs beside the others when it needs most, the batch included.
    parameters count buffers, and what is gathered for a while."""

    parameters: int
    gradients: int
    state: int
    activations: int
    peak: int


def memory(candidate: Candidate, sketch: Sketch) -> Memory:
    """sketch: of the samples that a device works on."""
    return _BY_KIND[candidate.kind](candidate, sketch)


def bytes_of(parameters: Iterable[Parameter], *, trained: bool = False) -> int:
    """trained: only of those that are."""
    return sum(p.size for p in parameters if p.trained or not trained)


def _single(_: Candidate, sketch: Sketch) -> Memory:
    held = bytes_of(sketch.parameters) + sketch.buffers
    gradients = bytes_of(sketch.parameters, trained=True)
    most = max(sketch.forward_peak, sketch.joint_peak, gradients + sketch.update_peak)
    return Memory(held, gradients, sketch.state, _activations(sketch), held + sketch.state + most)


def _mirrored(_: Candidate, sketch: Sketch) -> Memory:
    """Gradients stay in DDP's buckets from step to step."""
    held = bytes_of(sketch.parameters) + sketch.buffers
    gradients = bytes_of(sketch.parameters, trained=True)
    activations = max(_activations(sketch), sketch.update_peak)
    peak = held + gradients + sketch.state + activations
    return Memory(held, gradients, sketch.state, _activations(sketch), peak)


def _sharded(candidate: Candidate, sketch: Sketch) -> Memory:
    """ZeRO's stage 1: replicas, each with a part of the state, which spread the rows they step."""
    parts = candidate.mesh.model
    gradients = bytes_of(sketch.parameters, trained=True)
    state = ceil(sketch.state / parts)
    update = sketch.left + (sketch.update_peak - sketch.left) // parts
    rows = shards(sketch.parameters, parts, trained=True)
    spread = sketch.left + (3 + 2 * parts) * rows  # as they are joined, sent and taken
    held = bytes_of(sketch.parameters) + sketch.buffers
    most = max(_activations(sketch), update, spread)
    return Memory(held, gradients, state, _activations(sketch), held + gradients + state + most)


def _activations(sketch: Sketch) -> int:
    return max(sketch.forward_peak, sketch.backward_peak)


def shards(parameters: Iterable[Parameter], parts: int, *, trained: bool = False) -> int:
    """Each parameter's first dim in equal parts, the largest of them."""
    return sum(
        ceil(p.rows / parts) * (p.size // max(1, p.rows))
        for p in parameters
        if p.trained or not trained
    )


_BY_KIND: Mapping[str, Callable[[Candidate, Sketch], Memory]] = {
    "single": _single,
    "mirrored": _mirrored,
    "sharded": _sharded,
}
