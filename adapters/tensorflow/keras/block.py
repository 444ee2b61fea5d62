"""Keras on TensorFlow: in one process, in several, or in one with several devices."""

from __future__ import annotations

from dream._adapter import Plan
from dream.adapters.keras.block import KerasBlock
from dream.adapters.tensorflow.keras.engine import ProcessEngine
from dream.adapters.tensorflow.keras.mirrored import MirroredEngine
from dream.adapters.tensorflow.replicas import Replicas
from dream.update.update import Knobs


def open_block(plan: Plan, who: Replicas) -> KerasBlock:
    """The block in which Keras models are distributed: over the devices of this process where it
    has several, else over the ranks."""
    engine = (
        ProcessEngine(who.communicator, plan)
        if who.distribution is None
        else MirroredEngine(who.distribution, who.communicator, plan.seed)
    )
    engine.knobs, engine.exchange = Knobs.of(plan.options), who.exchange
    return KerasBlock(engine)
