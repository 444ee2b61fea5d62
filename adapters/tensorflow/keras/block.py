"""Keras on TensorFlow: in one process, in several, or in one with several devices."""

from __future__ import annotations

import tensorflow as tf

from dream._adapter import Plan
from dream.adapters.keras.block import KerasBlock
from dream.adapters.keras.update.exchange import Exchange
from dream.adapters.tensorflow.keras.engine import ProcessEngine
from dream.adapters.tensorflow.keras.mirrored import MirroredEngine
from dream.collectives import Communicator
from dream.update.update import Knobs


def open_block(
    plan: Plan,
    communicator: Communicator,
    distribution: tf.distribute.Strategy | None,
    exchange: Exchange | None,
) -> KerasBlock:
    """The block in which Keras models are distributed: over the devices of this process where it
    has several, else over the ranks."""
    engine = (
        ProcessEngine(communicator, plan)
        if distribution is None
        else MirroredEngine(distribution, communicator, plan.seed)
    )
    engine.knobs, engine.exchange = Knobs.of(plan.options), exchange
    return KerasBlock(engine)
