"""Explain a difference by the numbers: an activation, an order, a factor, a missing gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from math import erf, pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dream.tools.port_check.match import Setting
from dream.tools.port_check.probe import ModelSide
from dream.tools.port_check.verdict import FirstDifference, LayerRow

Array = NDArray[Any]
_ALPHA, _SCALE = 1.6732632423543772, 1.0507009873554805


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


def _softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def _elu(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _leaky(slope: float) -> Callable[[Array], Array]:
    return lambda x: np.where(x > 0, x, slope * x)


def _gelu(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1 + np.vectorize(erf, otypes=[float])(x / sqrt(2))))


def _gelu_tanh(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu (exact)": _gelu,
    "gelu (tanh)": _gelu_tanh,
    "silu": lambda x: x * _sigmoid(x),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "hard sigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "softmax": _softmax,
    "log softmax": lambda x: np.log(_softmax(x)),
    "softplus": lambda x: np.logaddexp(x, 0),
    "elu": _elu,
    "selu": lambda x: _SCALE * _elu(x, _ALPHA),
    "relu6": lambda x: np.clip(x, 0, 6),
    "hard swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "mish": lambda x: x * np.tanh(np.logaddexp(x, 0)),
    **{f"leaky relu ({slope})": _leaky(slope) for slope in (0.01, 0.1, 0.2, 0.3)},
}

_MOST = 1 << 16
"""Numbers that are looked at: the exact GELU costs a microsecond each."""


def identify(before: Array, after: Array, allowed: float) -> tuple[str, str] | None:
    """(activation, order in which a map was flattened or "") that take `before` to `after`.

    A candidate may overflow, and then is none: to be called where NumPy does not warn.
    """
    found = []
    for order, x in _layouts(np.asarray(before, float), after.shape):
        rows = max(1, _MOST // max(1, x[:1].size))
        kept, wanted = x[:rows], np.asarray(after[:rows], float)
        for name, act in ACTIVATIONS.items():
            error = _relative_error(act(kept), wanted)
            if error <= allowed:
                found.append((error, name, order))
    # the nearest: for large numbers the two GELUs are alike to 1e-5
    return min(found, key=lambda each: each[0])[1:] if found else None


def _layouts(x: Array, shape: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    if x.shape == shape:
        yield "", x
    elif len(shape) == 2 < x.ndim and x.shape[0] == shape[0] and x[:1].size == shape[1]:
        yield "channels first", np.moveaxis(x, -1, 1).reshape(shape)
        yield "channels last", x.reshape(shape)


def _relative_error(x: Array, y: Array) -> float:
    return float(np.max(np.abs(x - y), initial=0) / max(1e-30, np.max(np.abs(y), initial=0)))


CLOSE = 1e-4
"""For recognizing: far above rounding, far below what tells activations apart."""


def _of_values(row: LayerRow, role: str, old: Array, new: Array) -> Iterator[str]:
    """Look for the same numbers in other places."""
    if old.shape != new.shape or not close(np.sort(old.ravel()), np.sort(new.ravel())):
        if row.old.summed | row.new.summed and role == "bias":
            yield "torch adds two biases: the other framework's one is their sum."
        return
    if old.ndim == 2 and old.shape[0] == old.shape[1] and close(old.T, new):
        yield "The kernel is transposed."
    elif row.old.kind.startswith("conv") and close(np.flip(old, tuple(range(old.ndim - 2))), new):
        yield "The kernel is flipped in space."
    elif gates := _gates_permuted(row.old.kind, old, new):
        yield gates
    elif role == "kernel" and row.old.kind == "dense" and close(_by_rows(old), _by_rows(new)):
        yield (
            "The kernel's rows are the same in another order: the map before it is flattened "
            "channels first in torch, channels last in Keras."
        )
    else:
        yield "The same numbers are there in another order."


_GATES = {"lstm": ("i", "f", "g", "o"), "gru": ("z", "r", "n")}


def _gates_permuted(kind: str, old: Array, new: Array) -> str:
    names = _GATES.get(kind, ())
    for order in permutations(range(len(names))):
        blocks = np.split(old, max(1, len(names)), axis=-1)
        if names and close(np.concatenate([blocks[i] for i in order], -1), new):
            found = ", ".join(names[i] for i in order)
            return (
                f"The gates are in another order: {found} where {', '.join(names)} belong (in "
                "Keras's order; torch's GRU has r, z, n)."
            )
    return ""


def _by_rows(kernel: Array) -> Array:
    return kernel[np.lexsort(kernel.T)]


def permuted(a: Array, b: Array) -> bool:
    """Return whether each sample has the same numbers in other places."""
    if a.shape[:1] != b.shape[:1] or a.size != b.size or not a.size:
        return False
    x, y = (np.sort(np.reshape(z, (len(z), -1)), -1) for z in (a, b))
    return close(x, y)


def close(a: Array, b: Array) -> bool:
    bound = CLOSE * max(1e-30, float(np.max(np.abs(a), initial=0)))
    return a.shape == b.shape and bool(np.max(np.abs(a - b), initial=0) <= bound)


def reasons(
    rows: Sequence[LayerRow],
    old: ModelSide,
    new: ModelSide,
    settings: Sequence[Setting],
    first_value: FirstDifference | None,
    first_layer: FirstDifference | None,
    first_gradient: FirstDifference | None,
) -> list[str]:
    """Explain in sentences, the likeliest first; in none where nothing is recognized."""
    with np.errstate(all="ignore"):  # what is compared may be infinite, and then is not alike
        if first_value is not None:
            row = _row(rows, first_value.layer)
            a = old.weights[row.old.name][first_value.role]
            b = new.weights[row.new.name][first_value.role]
            return list(_of_values(row, first_value.role, a, b))
        if first_layer is not None:
            return list(_of_outputs(rows, old, new, settings, first_layer))
        if first_gradient is not None:
            row = _row(rows, first_gradient.layer)
            return list(_of_gradients(row, first_gradient.role, old, new))
    return []


def _row(rows: Sequence[LayerRow], name: str | None) -> LayerRow:
    return next(row for row in rows if row.old.name == name)


def _of_outputs(
    rows: Sequence[LayerRow],
    old: ModelSide,
    new: ModelSide,
    settings: Sequence[Setting],
    first: FirstDifference,
) -> Iterator[str]:
    if first.where == "in":
        row = _row(rows, first.layer)
        yield from _in_layer(row, old, new, [s for s in settings if s.layer == first.layer])
        return
    place = len(rows) if first.layer is None else rows.index(_row(rows, first.layer))
    before = rows[place - 1] if place else None
    after = rows[place] if place < len(rows) else None
    yield from _between(before, after, old, new)


def _in_layer(
    row: LayerRow, old: ModelSide, new: ModelSide, settings: Sequence[Setting]
) -> Iterator[str]:
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


def _between(
    before: LayerRow | None, after: LayerRow | None, old: ModelSide, new: ModelSide
) -> Iterator[str]:
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
    elif (acts[0] or acts[1]) and ends[0].shape == ends[1].shape:
        words = [f"{w} {act[0]}" for w, act in zip(("old", "new"), acts, strict=True) if act]
        yield f"Recognized as activation: {', '.join(words)}."
    yield _listed(after, old, new)


def _name(row: LayerRow | None, place: int) -> str:
    return "" if row is None else (row.old, row.new)[place].name


def _listed(after: LayerRow | None, old: ModelSide, new: ModelSide) -> str:
    a, b = (
        ", ".join(side.facts.between.get(_name(after, place), [])) or "nothing seen"
        for place, side in enumerate((old, new))
    )
    return f"What has no parameters lies there: old {a}; new {b}."


def _of_gradients(row: LayerRow, role: str, old: ModelSide, new: ModelSide) -> Iterator[str]:
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
