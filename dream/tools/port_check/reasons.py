"""What a difference likely comes from: told by what the numbers themselves show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dream.tools.port_check.activations import identify
from dream.tools.port_check.recognition import CLOSE, close, of_values, permuted
from dream.tools.port_check.settings import Setting
from dream.tools.port_check.side import Side
from dream.tools.port_check.verdict import Found, Row


def reasons(
    rows: Sequence[Row],
    old: Side,
    new: Side,
    settings: Sequence[Setting],
    first_value: Found | None,
    first_layer: Found | None,
    first_gradient: Found | None,
) -> list[str]:
    """Sentences, the likeliest first; none where nothing is recognized."""
    with np.errstate(all="ignore"):  # what is compared may be infinite, and then is not alike
        if first_value is not None:
            row = _row(rows, first_value.layer)
            a = old.weights[row.old.name][first_value.role]
            b = new.weights[row.new.name][first_value.role]
            return list(of_values(row, first_value.role, a, b))
        if first_layer is not None:
            return list(_of_outputs(rows, old, new, settings, first_layer))
        if first_gradient is not None:
            row = _row(rows, first_gradient.layer)
            return list(_of_gradients(row, first_gradient.role, old, new))
    return []


def _row(rows: Sequence[Row], name: str | None) -> Row:
    return next(row for row in rows if row.old.name == name)


def _of_outputs(
    rows: Sequence[Row], old: Side, new: Side, settings: Sequence[Setting], first: Found
) -> Iterator[str]:
    if first.where == "in":
        row = _row(rows, first.layer)
        yield from _in_layer(row, old, new, [s for s in settings if s.layer == first.layer])
        return
    place = len(rows) if first.layer is None else rows.index(_row(rows, first.layer))
    before = rows[place - 1] if place else None
    after = rows[place] if place < len(rows) else None
    yield from _between(before, after, old, new)


def _in_layer(row: Row, old: Side, new: Side, settings: Sequence[Setting]) -> Iterator[str]:
    for setting in settings:
        if "missing" in (setting.old, setting.new):
            which = "old" if setting.old == "missing" else "new"
            yield f"The {setting.name} is missing in the {which} model."
        elif setting.name not in ("momentum", "dropout"):
            yield f"The {setting.name} differs: old {setting.old}, new {setting.new}."
    a, b = old.passes.gave[row.old.name], new.passes.gave[row.new.name]
    found = identify(a, b, CLOSE) if a.shape == b.shape else None
    if found and found[0] != "none":
        yield f"What the new layer gives is {found[0]} of what the old one gives."
    elif permuted(a, b):
        yield "The same numbers come out in another order."


def _between(before: Row | None, after: Row | None, old: Side, new: Side) -> Iterator[str]:
    ends = [
        (side.passes.given[name] if (name := _name(after, place)) else side.passes.outputs[0])
        for place, side in enumerate((old, new))
    ]
    starts = [
        side.passes.gave.get(name) if (name := _name(before, place)) else None
        for place, side in enumerate((old, new))
    ]
    acts = [None if s is None else identify(s, e, CLOSE) for s, e in zip(starts, ends, strict=True)]
    if acts[0] and acts[1] and acts[0] != acts[1]:
        if acts[0][0] != acts[1][0]:
            yield f"The activation differs: old {acts[0][0]}, new {acts[1][0]}."
        if acts[0][1] != acts[1][1]:
            yield (
                f"The map is flattened in another order: old {acts[0][1]}, new {acts[1][1]}, where "
                "the layer's weights want channels first (a Keras Flatten is turned to it)."
            )
    elif permuted(*ends):
        yield (
            "The same numbers come in another order: a map is flattened, or its axes are turned, "
            "in one model and not in the other."
        )
    elif acts[0] or acts[1]:
        words = [f"{w} {act[0]}" for w, act in zip(("old", "new"), acts, strict=True) if act]
        yield f"Recognized as activation: {', '.join(words)}."
    yield _listed(after, old, new)


def _name(row: Row | None, place: int) -> str:
    return "" if row is None else (row.old, row.new)[place].name


def _listed(after: Row | None, old: Side, new: Side) -> str:
    a, b = (
        ", ".join(side.facts.between.get(_name(after, place), [])) or "nothing seen"
        for place, side in enumerate((old, new))
    )
    return f"What has no parameters lies there: old {a}; new {b}."


def _of_gradients(row: Row, role: str, old: Side, new: Side) -> Iterator[str]:
    a = old.passes.gradients[row.old.name][role]
    b = new.passes.gradients[row.new.name][role]
    if a is None or b is None:
        which = "old" if a is None else "new"
        yield f"No gradient flows to it in the {which} model: something there is detached."
        return
    norm = float(np.vdot(a, a))
    factor = float(np.vdot(a, b)) / norm if norm else 0.0
    if close(a * factor, b):
        yield f"The new gradient is {factor:.4g} times the old one."
    zero = [which for which, x in (("old", a), ("new", b)) if np.any(np.all(x == 0, axis=-1))]
    if row.old.kind == "embedding" and len(zero) == 1:
        yield f"The {zero[0]} model gives some rows no gradient, as padding_idx does."
