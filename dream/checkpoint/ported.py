"""A checkpoint of torch's for Keras and the other way: the same layers under other names and in
other layouts, optimizer states where they mean the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dream._errors import ConfigurationError, Unsupported
from dream.checkpoint.content import Arrays, OptimizerState
from dream.model_description.layers import Layer, from_canonical, to_canonical
from dream.model_description.steps import OPS

_ADAM = {"momentum": "exp_avg", "velocity": "exp_avg_sq", "velocity_hat": "max_exp_avg_sq"}
_SLOTS: Mapping[str, Mapping[str, str]] = {
    "SGD": {"momentum": "momentum_buffer"},
    "Adam": _ADAM,
    "AdamW": _ADAM,
}
"""By optimizer Keras's name of a slot and torch's."""
_COUNTS = ".num_batches_tracked"
"""torch alone has it, in BatchNorm, where it counts updates."""


def model(saved: Sequence[Layer], here: Sequence[Layer], arrays: Arrays) -> dict[str, Any]:
    """Return a model's arrays by the names that they have here. Raises where layers differ."""
    _check_same(saved, here)
    found: dict[str, Any] = {}
    for theirs, ours in zip(saved, here, strict=True):
        canonical = to_canonical(theirs, _all_of(theirs, arrays), OPS)
        found |= from_canonical(ours, canonical, OPS)
    return {name: np.ascontiguousarray(array) for name, array in found.items()}


def counts(names: Sequence[str], step: int) -> dict[str, Any]:
    """Return what torch has beside, for so many updates."""
    return {name: np.array(step, np.int64) for name in names if name.endswith(_COUNTS)}


def optimizer(
    saved: Sequence[Layer], here: Sequence[Layer], state: OptimizerState,
    own: OptimizerState, step: int, to: str,
) -> OptimizerState:  # fmt: skip
    """Return an optimizer's state as one here has it. own: its state as it is. to: "torch" or
    "keras"."""
    slots = _SLOTS.get(state.kind)
    if slots is None or own.kind != state.kind:
        raise Unsupported(
            "These optimizers' states have different meanings in torch and Keras. Received: "
            f"{state.kind} in the checkpoint, {own.kind} here. Use {', '.join(_SLOTS)} in both; or "
            "load the model alone, leaving optimizer= out."
        )
    to_torch = to == "torch"
    renamed = dict(slots) if to_torch else {torch: keras for keras, torch in slots.items()}
    rate = _rate(state.groups, "learning_rate" if to_torch else "lr")
    factor = _momentum_factor(state, rate, to_torch=to_torch)
    arrays: dict[str, Any] = {}
    for theirs, ours in zip(saved, here, strict=True):
        for slot, name in renamed.items():
            held = {
                p.name: state.arrays[f"{p.name}/{slot}"] * factor
                for p in theirs.parameters
                if f"{p.name}/{slot}" in state.arrays
            }
            canonical = to_canonical(theirs, held, OPS, "gradient")
            for parameter, array in from_canonical(ours, canonical, OPS, "gradient").items():
                like = np.float32 if array.dtype == np.float64 else array.dtype
                arrays[f"{parameter}/{name}"] = np.ascontiguousarray(array, like)
    done = _iteration(state, step)
    if to_torch and state.kind != "SGD":
        stepped = {key.rpartition("/")[0] for key in arrays}
        arrays |= {f"{name}/step": np.array(done, np.float32) for name in stepped}
    own_rate = {"lr": rate} if to_torch else {"learning_rate": rate, "iteration": done}
    groups = [{**group, **own_rate} for group in own.groups]
    return OptimizerState(own.kind, arrays, {}, groups)


def _check_same(saved: Sequence[Layer], here: Sequence[Layer]) -> None:
    for theirs, ours in zip(saved, here, strict=False):
        if (theirs.kind, theirs.roles) != (ours.kind, ours.roles):
            raise ConfigurationError(
                f"This checkpoint belongs to a model with other layers. Received: {theirs.name!r} "
                f"({theirs.kind}, {theirs.roles}) in it, {ours.name!r} ({ours.kind}, {ours.roles}) "
                "here. Build the same layers in the same order."
            )
    if len(saved) != len(here):
        raise ConfigurationError(
            f"This checkpoint belongs to a model with other layers. Received: {len(saved)} layers "
            f"with parameters in it, {len(here)} here. Build the same layers in the same order."
        )


def _all_of(layer: Layer, arrays: Arrays) -> dict[str, Any]:
    return {p.name: arrays[p.same_as or p.name] for p in layer.parameters}


def _rate(groups: Sequence[Mapping[str, Any]], name: str) -> float:
    rates = {float(group[name]) for group in groups if name in group}
    if len(rates) != 1:
        raise Unsupported(
            "A Keras optimizer has a single learning rate. Received: "
            f"{sorted(rates) or 'a schedule'} in the checkpoint. Load the model alone, leaving "
            "optimizer= out."
        )
    return rates.pop()


def _momentum_factor(state: OptimizerState, rate: float, *, to_torch: bool) -> float:
    """Return what takes one framework's momentum to the other's: Keras keeps the step that it
    makes, torch the sum of gradients that is multiplied by the learning rate."""
    if state.kind != "SGD":
        return 1.0
    if rate == 0.0 and state.arrays:
        raise Unsupported(
            "Keras's momentum is scaled by the learning rate, so it cannot be converted at a rate "
            "of 0. Received: a learning rate of 0. Load the model alone, leaving optimizer= out."
        )
    return -1.0 / rate if to_torch and rate else -rate


def _iteration(state: OptimizerState, step: int) -> int:
    """Return how many updates an optimizer has made; by the checkpoint's own count where it does
    not say."""
    for group in state.groups:
        if "iteration" in group:
            return int(group["iteration"])
    steps = [int(value) for key, value in state.arrays.items() if key.endswith("/step")]
    return max(steps, default=step)
