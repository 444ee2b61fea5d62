"""Keras on torch, in one process or several."""

from __future__ import annotations

from typing import Any

from dream._adapter import Plan
from dream.adapters.keras.block import KerasBlock
from dream.adapters.pytorch.keras.engine import TorchEngine
from dream.collectives import Communicator
from dream.update.update import Knobs


def open_block(plan: Plan, communicator: Communicator, distribution: Any = None) -> KerasBlock:
    """The block in which Keras models, on torch, are distributed over the communicator's ranks.

    distribution: has no meaning on torch, where a process drives one device.
    """
    del distribution
    engine = TorchEngine(communicator, plan)
    engine.knobs = Knobs.of(plan.options)
    return KerasBlock(engine)
