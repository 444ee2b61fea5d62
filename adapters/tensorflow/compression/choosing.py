"""Which exchange was asked for."""

from __future__ import annotations

import tensorflow as tf

from dream._errors import Unsupported
from dream.adapters.keras.engine import Exchange
from dream.adapters.tensorflow.compression.adasum import Adasum
from dream.adapters.tensorflow.compression.largest import Largest
from dream.adapters.tensorflow.compression.rounding import Rounded
from dream.collectives import Wire
from dream.update.update import Knobs


def check(knobs: Knobs, devices: int) -> None:
    """Refuse what is for torch alone, and what several devices of one process have no use for."""
    asked = knobs.compressed
    if asked is not None and asked.kind == "powersgd":
        raise Unsupported(
            "TensorFlow's gradients travel rounded, or as their largest elements. Received: "
            f"compression={knobs.compression!r} for tensorflow. Use 'float16', 'bfloat16' or "
            "'topk[:FRACTION]'; powersgd works in torch."
        )
    if devices > 1 and (asked is not None or knobs.op == "adasum"):
        raise Unsupported(
            "The devices of one process add up in one memory, where TensorFlow takes the mean of "
            f"whole gradients. Received: compression={knobs.compression!r}, op={knobs.op!r}, "
            f"devices={devices} in one process. Start `dream run -n {devices}` with a device "
            "each, or leave the option out."
        )


def exchange_of(knobs: Knobs, wire: Wire, world_size: int) -> Exchange | None:
    """None for the plain mean. knobs: checked."""
    if knobs.op == "adasum":
        return Adasum(wire, world_size)
    asked = knobs.compressed
    if asked is None:
        return None
    if asked.kind == "topk":
        return Largest(wire, world_size, asked)
    return Rounded(wire, world_size, tf.as_dtype(asked.kind))
