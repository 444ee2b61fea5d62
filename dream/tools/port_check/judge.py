"""Two models' passes held against each other, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dream.model_description.layers import Layer
from dream.tools.port_check import match, verdict
from dream.tools.port_check.match import Pair
from dream.tools.port_check.probe import ModelSide, as_flattened
from dream.tools.port_check.reasons import close, reasons
from dream.tools.port_check.verdict import ArrayGap, FirstDifference, LayerRow, PortReport

Array = NDArray[Any]


def judge(
    pairs: Sequence[Pair],
    old: ModelSide,
    new: ModelSide,
    *,
    copied: bool,
    allowed: float | None,
    shaken: Sequence[str] = (),
) -> PortReport:
    """allowed: the user's own tolerance; copied: the new model was given the old one's weights."""
    rows = [_row(pair, place, len(pairs), old, new, copied, allowed)
            for place, pair in enumerate(pairs)]  # fmt: skip
    outputs = _outputs(old, new, verdict.tolerance(_dtype(pairs), len(pairs) + 1, allowed))
    if not any(gap.bad for gap in (*outputs, *(g for row in rows for g in row.gradients.values()))):
        rows = [_settled(row, old, new) for row in rows]
    found = [s for pair in pairs for s in match.differing(
        pair, _shape(old, pair.old.name), _shape(new, pair.new.name))]  # fmt: skip
    found += _dropouts(old, new)
    first_layer = _first_layer(rows, outputs)
    first_value = _first((row, row.values) for row in rows)
    towards = rows if first_layer else rows[::-1]
    first_gradient = _first((row, row.gradients) for row in towards)
    return PortReport(
        rows=tuple(rows),
        outputs=tuple(outputs),
        loss=(old.passes.loss, new.passes.loss),
        settings=tuple(found),
        first_value=first_value,
        first_layer=first_layer,
        first_gradient=first_gradient,
        reasons=tuple(reasons(rows, old, new, found, first_value, first_layer, first_gradient)),
        remarks=tuple(match.remarks(pairs, old.facts, new.facts)),
        shaken=tuple(shaken),
        given={name: (shape, new.facts.given[name]) for name, shape in old.facts.given.items()},
        backends=(old.facts.backend, new.facts.backend),
    )


def same_order(pair: Pair, old: ModelSide, new: ModelSide) -> bool:
    """Whether both models flatten a map in the order of the one that keeps channels last: torch's
    may turn the axes before, as one does to keep a Keras kernel as it is."""
    a, b = old.passes.given.get(pair.old.name), new.passes.given.get(pair.new.name)
    turned = (bool(pair.old.flattened), bool(pair.new.flattened))
    if a is None or b is None or a.shape != b.shape or turned[0] == turned[1] or close(a, b):
        return False
    as_given = (as_flattened(pair.old, a), b) if turned[0] else (a, as_flattened(pair.new, b))
    return close(*as_given)


def _row(
    pair: Pair,
    place: int,
    count: int,
    old: ModelSide,
    new: ModelSide,
    copied: bool,
    allowed: float | None,
) -> LayerRow:
    a, b = pair.old.name, pair.new.name
    near = verdict.tolerance(_dtype([pair]), place + 1, allowed)
    far = verdict.tolerance(_dtype([pair]), 2 * count - place, allowed)
    values = {} if copied else _by_role(pair, old.weights[a], new.weights[b], 0.0 if
                                        allowed is None else allowed)  # fmt: skip
    return LayerRow(
        old=pair.old,
        new=pair.new,
        values=values,
        given=_seen(pair.old, old.passes.given.get(a), new.passes.given.get(b), near),
        gave=_seen(pair.old, old.passes.gave.get(a), new.passes.gave.get(b), near),
        gradients=_by_role(pair, old.passes.gradients[a], new.passes.gradients[b], far),
    )


def _by_role(
    pair: Pair, old: Mapping[str, Array | None], new: Mapping[str, Array | None], allowed: float
) -> dict[str, ArrayGap]:
    """Relative to the largest number of the layer's: a gradient that is nothing but rounding, as
    that of attention's key bias, is small by it. No gradient counts as zeros."""
    numbers = [float(np.max(np.abs(x), initial=0)) for x in old.values() if x is not None]
    scale = max(numbers, default=0.0) or None
    found = {}
    for role in pair.roles:
        if role in old and role in new:
            shape = pair.old.roles[role]
            a, b = (np.zeros(shape) if x is None else x for x in (old[role], new[role]))
            found[role] = verdict.gap(a, b, allowed, scale)
    return found


def _seen(layer: Layer, old: Array | None, new: Array | None, allowed: float) -> ArrayGap | None:
    if old is None or new is None:
        return None
    if layer.kind in ("lstm", "gru", "rnn") and {old.ndim, new.ndim} == {2, 3}:
        old, new = (x[:, -1] if x.ndim == 3 else x for x in (old, new))  # the last step's only
    found = verdict.gap(old, new, allowed)
    if found.reshaped and old.size == new.size and old.shape[-1:] == new.shape[-1:]:
        alike = verdict.gap(old, new.reshape(old.shape), allowed)
        return found if alike.bad else alike  # a port may take all steps as samples
    return found


def _settled(row: LayerRow, old: ModelSide, new: ModelSide) -> LayerRow:
    """Where all outputs and gradients agree, the same numbers in other places are no difference,
    and other shapes are not to be compared: inside, a port may count time before the batch, or
    cut off behind a layer what the old model's layer does not give."""
    a, b = row.old.name, row.new.name
    return replace(
        row,
        given=_moved(row.given, old.passes.given.get(a), new.passes.given.get(b), row.given),
        gave=_moved(row.gave, old.passes.gave.get(a), new.passes.gave.get(b), None),
    )


def _moved(
    gap: ArrayGap | None, old: Array | None, new: Array | None, unlike: ArrayGap | None
) -> ArrayGap | None:
    """unlike: for arrays that are not to be compared."""
    if gap is None or not gap.bad or old is None or new is None:
        return gap
    if old.size != new.size:
        return unlike
    found = verdict.gap(np.sort(old, None), np.sort(new, None), gap.tolerance)
    return gap if found.bad else replace(found, shapes=gap.shapes)


def _outputs(old: ModelSide, new: ModelSide, allowed: float) -> list[ArrayGap]:
    a, b = old.passes.outputs, new.passes.outputs
    if len(a) != len(b):
        return [ArrayGap(np.inf, np.inf, allowed, ((len(a),), (len(b),)))]
    return [verdict.gap(x, y, allowed) for x, y in zip(a, b, strict=True)]


def _first_layer(rows: Sequence[LayerRow], outputs: Sequence[ArrayGap]) -> FirstDifference | None:
    """Find the first layer that differs by what comes out: what goes in may differ, where one model
    pads before its layer."""
    for row in rows:
        if row.gave is not None and row.gave.bad:
            before = row.given is not None and row.given.bad
            return FirstDifference(row.old.name, row.gave, "before" if before else "in")
    bad = next((each for each in outputs if each.bad), None)
    return None if bad is None else FirstDifference(None, bad, "after")


def _first(gaps: Iterable[tuple[LayerRow, Mapping[str, ArrayGap]]]) -> FirstDifference | None:
    """Return the first by role that differs."""
    return next((FirstDifference(row.old.name, each, role=role) for row, roles in gaps
                 for role, each in roles.items() if each.bad), None)  # fmt: skip


def _dtype(pairs: Sequence[Pair]) -> str:
    """Return the coarsest float that is computed in or kept."""
    layers = [layer for pair in pairs for layer in (pair.old, pair.new)]
    held = {p.dtype for layer in layers for p in layer.parameters}
    held |= {layer.settings["dtype"] for layer in layers if "dtype" in layer.settings}
    coarse = ("bfloat16", "float16", "float32", "float64")
    return next((name for name in coarse if name in held), "float32")


def _shape(side: ModelSide, layer: str) -> tuple[int, ...] | None:
    given = side.passes.given.get(layer)
    return None if given is None else given.shape


def _dropouts(old: ModelSide, new: ModelSide) -> list[match.Setting]:
    """Compare rates where both have as many dropout layers; a functional one cannot be seen."""
    a, b = old.facts.dropouts, new.facts.dropouts
    if len(a) != len(b) or a == b:
        return []
    return [match.Setting("dropout layers", "rates", a, b)]
