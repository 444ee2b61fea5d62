"""Keras on TensorFlow: in one process, in several, or in one with several devices."""

from __future__ import annotations

import tensorflow as tf

from dream._adapter import Plan
from dream._knobs import Knobs
from dream.adapters.keras.block import KerasBlock
from dream.adapters.tensorflow.keras_engine import ProcessEngine
from dream.adapters.tensorflow.keras_mirrored import MirroredEngine
from dream.communication import Communicator


def open_block(
    plan: Plan,
    communicator: Communicator,
    distribution: tf.distribute.Strategy | None = None,
) -> KerasBlock:
    """The block in which Keras models are distributed: over the devices of `distribution`, else
    over the communicator's ranks."""
    engine = (
        ProcessEngine(communicator, plan)
        if distribution is None
        else MirroredEngine(distribution, communicator, plan.seed)
    )
    engine.knobs = Knobs.of(plan.options)
    return KerasBlock(engine)
