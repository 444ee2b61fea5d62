"""Which options of an update a split model honours, and what to do about the others."""

from __future__ import annotations

from dream._adapter import Plan
from dream.update.update import Knobs

_HONOURED: dict[str, tuple[object, ...]] = {
    "accumulate": (),
    "clip_norm": (),
    "clip_value": (),
    "precision": (),
    "recompute": (),
    "sync_batch_norm": (True,),
}


def of(plan: Plan) -> Knobs:
    """A plan's. Raises `Unsupported` for what cannot be honoured."""
    knobs = Knobs.of(plan.options)
    knobs.only(
        _HONOURED,
        "A split Keras model",
        "BatchNorm sees the whole batch there, or is refused: leave it out, or use 'mirrored'.",
    )
    return knobs
