"""The explicit step beside ranks of another framework."""

from __future__ import annotations

from typing import Any

from dream._adapter import Step
from dream._errors import Unsupported
from dream.adapters.keras.block import KerasBlock
from dream.adapters.keras.update.gradient_format import CanonicalFormat
from dream.adapters.tensorflow.loss import Batch
from dream.adapters.tensorflow.step import LocalStep, build, process_step
from dream.data.partition import split
from dream.mixed.resync import Resync
from dream.update.update import UpdateOptions


def step(model: Any, optimizer: Any, local: LocalStep, block: KerasBlock) -> Step:
    """Gradients travel in the canonical form, and weights are rank 0's again now and then."""
    engine = block.engine
    resyncs: list[Resync] = []

    def start(batch: Batch) -> None:
        build(model, optimizer, batch)
        form = local.form = CanonicalFormat(model, split(batch)[0])
        form.agree([optimizer], engine)
        block.start(model)
        resyncs.append(form.resync(engine))

    return process_step(local, start, lambda: resyncs[0].before_step())


def no_loop() -> Unsupported:
    return Unsupported(
        "Beside ranks of another framework TensorFlow takes whole steps. Received: weigh, for a "
        "custom training loop. Use strategy.train_step(model, loss, optimizer, weight=...)."
    )


def breaks(update_options: UpdateOptions) -> bool:
    """Whether ranks of another framework cannot go along."""
    travels = update_options.compression or update_options.op != "mean" or update_options.autotune
    return bool(
        update_options.accumulates
        or update_options.casts
        or update_options.sync_batch_norm
        or travels
    )


def no_update_options(asked: UpdateOptions) -> Unsupported:
    return Unsupported(
        "Ranks of another framework take each batch at once, in float32, with statistics of their "
        f"own, and the mean of whole gradients. Received: accumulate={asked.accumulate}, "
        f"precision={asked.precision!r}, sync_batch_norm={asked.sync_batch_norm}, "
        f"compression={asked.compression!r}, op={asked.op!r}, autotune={asked.autotune} in a job "
        "of two frameworks. Remove them."
    )


def one_device(count: int) -> Unsupported:
    return Unsupported(
        "Beside ranks of another framework each rank drives one device. Received: "
        f"devices={count}. Remove devices, and start more ranks (dream run -n)."
    )
