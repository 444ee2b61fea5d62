"""Keras models on torch under `local_sgd`."""

from __future__ import annotations

from dream._adapter import Plan
from dream.adapters.keras.asynchronous.alone import Alone, by_hand
from dream.adapters.keras.asynchronous.averaging import Averages
from dream.adapters.keras.asynchronous.block import Block
from dream.adapters.keras.asynchronous.catching import Catching
from dream.adapters.keras.asynchronous.models import Models
from dream.adapters.pytorch.keras.engine import TorchEngine
from dream.adapters.pytorch.parallel.asynchronous.keras_machine import TorchMachine
from dream.collectives import Communicator


def open_block(plan: Plan, communicator: Communicator) -> Block:
    """The block in which Keras models, on torch, step alone and are averaged."""
    every = plan.options["every"]
    assert isinstance(every, int)
    engine, machine = TorchEngine(communicator, plan), TorchMachine()
    averages, catching = Averages(engine, machine, every), Catching(by_hand)
    steps = Alone(engine, machine, averages, catching)
    return Block(Models(steps, plan.seed, catching.take, "local_sgd"))
