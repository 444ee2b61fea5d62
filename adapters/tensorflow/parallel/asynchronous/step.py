"""The explicit training step of a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from dream._adapter import Step
from dream.adapters.keras.asynchronous.held import Held
from dream.adapters.keras.asynchronous.training import Training
from dream.adapters.tensorflow.errors import translated
from dream.adapters.tensorflow.loss import count_of
from dream.adapters.tensorflow.step import LocalStep, build


def pushed_step(
    training: Training,
    model: Any,
    loss: Callable[..., Any],
    optimizer: Any,
    weight: Callable[..., Any] | None,
) -> Step:
    """Forward, backward and a push. The value is the mean loss of the batch: this worker's own,
    or in step with the others that of all."""
    inner = LocalStep(model, loss, optimizer, weight, None, ranks=True)
    run: Callable[..., Any] | None = None

    def local(held: Held) -> Callable[..., tuple[Any, list[Any]]]:
        def call(*batch: Any) -> tuple[Any, list[Any]]:
            with training.catching.gradients(held.order) as gradients:
                value = inner(*batch)
            return value, gradients

        return call

    def step(*batch: Any) -> tf.Tensor:
        nonlocal run
        batch = training.machine.tensors(batch)
        with translated():
            if run is None:
                build(model, optimizer, batch)
                held = training.ready(model, optimizer)
                run = training.machine.differentiate(
                    local(held), held.order, eager=False, one_length=False
                )
            held = training.ready(model, optimizer)
            value, present = run(batch, training.client.gradient)
            counted = float(count_of(batch) if weight is None else weight(*batch))
        told = training.push(held, float(value), counted, present)
        return tf.constant(told, value.dtype)

    return step
