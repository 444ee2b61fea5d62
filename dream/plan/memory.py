"""Bytes on each device, strategy by strategy: what dream's adapters hold, not what could be held.

The busiest device's. Peaks are those of `Sketch`, read for the share of the batch that a device
has. ZeRO's stages: Rajbhandari et al., SC 2020, arXiv:1910.02054; the pipeline's: Narayanan et al.,
SC 2021, arXiv:2104.04473; tensor parallelism: Shoeybi et al., arXiv:1909.08053.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import final

from dream._stages import balanced

from .candidates import Candidate
from .sketch import WHOLE, Parameter, Sketch


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
    """sketch: of the samples that a device works on at a time: a microbatch in a pipeline."""
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
    """1: replicas, each with a part of the state. 2: parameters are gathered in forward, kept for
    backward, and gradients are reduced to parts unit by unit. 3: each unit's parameters are
    gathered when it is called, the next ones beside them, and given up again."""
    parts = candidate.mesh.model
    whole = bytes_of(sketch.parameters)
    gradients = bytes_of(sketch.parameters, trained=True)
    state = ceil(sketch.state / parts)
    update = sketch.left + (sketch.update_peak - sketch.left) // parts
    activations = _activations(sketch)
    if candidate.zero == 1:
        held, given = whole + sketch.buffers, gradients
        rows = shards(sketch.parameters, parts, trained=True)
        spread = sketch.left + (3 + 2 * parts) * rows  # as they are joined, sent and taken
        most = max(activations, update, spread)
    else:
        given = shards(sketch.parameters, parts, trained=True)
        own = shards(sketch.parameters, parts) + sketch.buffers
        root, unit = gathered_units(sketch)
        gathered = whole if candidate.zero == 2 else min(whole, max(root, unit) + unit)
        held = own + gathered
        most = max(activations + unit, update - gathered)
    return Memory(held, given, state, activations, held + given + state + most)


def _tensor(candidate: Candidate, sketch: Sketch) -> Memory:
    parts = candidate.mesh.model
    held = divided(sketch, sketch.parameters, parts)
    trained = [p for p in sketch.parameters if p.trained]
    gradients = divided(sketch, trained, parts)
    share = gradients / max(1, bytes_of(trained))
    state = ceil(sketch.state * share)
    saved = sum(c.saved for c in sketch.cuts if c.size % parts == 0)
    gone = saved - saved // parts
    activations = max(0, _activations(sketch) - gone)
    update = sketch.left + ceil((sketch.update_peak - sketch.left) * share)
    made = max(0, sketch.joint_peak - gone - ceil((1 - share) * bytes_of(trained)))
    most = max(activations, made, gradients + update)
    if candidate.mesh.data > 1:  # gradients are joined, and added up out of place
        most = max(most, sketch.left + 3 * gradients)
    held += sketch.buffers
    return Memory(held, gradients, state, activations, held + state + most)


def _pipeline(candidate: Candidate, sketch: Sketch) -> Memory:
    """The stage that needs most. Under 1F1B stage s of S holds min(M, S - s) microbatches between
    their forward and backward."""
    parts = candidate.mesh.model
    return max(
        (
            _stage(sketch, units, min(candidate.microbatches, parts - index))
            for index, units in enumerate(stages(sketch, parts))
        ),
        key=lambda one: one.peak,
    )


def _stage(sketch: Sketch, units: Sequence[str], flying: int) -> Memory:
    of = unit_of(sketch)
    own = [p for p in sketch.parameters if of(p.layer) in units]
    held, gradients = bytes_of(own), bytes_of(own, trained=True)
    total = max(1, bytes_of(sketch.parameters, trained=True))
    state = ceil(sketch.state * gradients / total)
    buffers = sketch.buffers
    saved = sum(layer.saved for layer in sketch.layers if layer.unit in units)
    passing = max((sketch.units[unit] for unit in units if unit in sketch.units), default=0)
    extra = max(0, sketch.backward_peak - sketch.saved - sketch.inputs)
    activations = flying * (saved + passing + sketch.inputs) + extra
    update = ceil((sketch.update_peak - sketch.left) * gradients / total)
    peak = held + buffers + gradients + state + max(activations, update)
    return Memory(held + buffers, gradients, state, activations, peak)


def _activations(sketch: Sketch) -> int:
    return max(sketch.forward_peak, sketch.backward_peak)


def shards(parameters: Iterable[Parameter], parts: int, *, trained: bool = False) -> int:
    """Each parameter's first dim in equal parts, the largest of them."""
    return sum(
        ceil(p.rows / parts) * (p.size // max(1, p.rows))
        for p in parameters
        if p.trained or not trained
    )


def gathered_units(sketch: Sketch) -> tuple[int, int]:
    """Bytes of parameters: of what is gathered with the whole model and stays from forward to
    backward, and of the largest unit that is gathered by itself."""
    of = unit_of(sketch)
    alone = gathered_alone(sketch)
    sizes: dict[str, int] = {}
    for p in sketch.parameters:
        sizes[of(p.layer)] = sizes.get(of(p.layer), 0) + p.size
    root = sum(size for unit, size in sizes.items() if unit not in alone)
    return root, max((size for unit, size in sizes.items() if unit in alone), default=0)


def gathered_alone(sketch: Sketch) -> set[str]:
    """Blocks in a list where there are any, else all units, as dream shards a model."""
    blocks = {unit for unit in sketch.units if "." in unit}
    return blocks if len(blocks) > 1 else set(sketch.units)


def divided(sketch: Sketch, parameters: Iterable[Parameter], parts: int) -> int:
    """Bytes where tensor parallelism divides what it can."""
    return sum(
        p.size // parts if p.cut != WHOLE and sketch.cuts[p.cut].size % parts == 0 else p.size
        for p in parameters
    )


def stages(sketch: Sketch, count: int) -> list[tuple[str, ...]]:
    """Units in order, in as many stages, of parameters as even as can be."""
    of = unit_of(sketch)
    names = list(sketch.units)
    costs = [float(bytes_of(p for p in sketch.parameters if of(p.layer) == n)) for n in names]
    starts = [0, *(balanced(costs, count, range(1, len(names))) or ()), len(names)]
    return [tuple(names[a:b]) for a, b in pairwise(starts)]


def unit_of(sketch: Sketch) -> Callable[[str], str]:
    """Layer -> unit; a layer in none belongs to the first unit."""
    found = {layer.name: layer.unit for layer in sketch.layers}
    first = next(iter(sketch.units), "")
    return lambda layer: found.get(layer, "") or first


_BY_KIND: Mapping[str, Callable[[Candidate, Sketch], Memory]] = {
    "single": _single,
    "mirrored": _mirrored,
    "sharded": _sharded,
    "tensor": _tensor,
    "pipeline": _pipeline,
}
