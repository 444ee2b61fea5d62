"""The explicit step beside ranks of another framework."""

from __future__ import annotations

from typing import Any

from dream._adapter import Step
from dream._errors import Unsupported
from dream.adapters.keras.hooks import KerasBlock
from dream.adapters.keras.update.gradient_format import CanonicalFormat
from dream.adapters.tensorflow.loss import Batch
from dream.adapters.tensorflow.step import LocalStep, build, process_step
from dream.data.partition import split
from dream.mixed.resync import Resync
from dream.update.update import Knobs


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


def breaks(knobs: Knobs) -> bool:
    """Whether ranks of another framework cannot go along."""
    travels = knobs.compression or knobs.op != "mean" or knobs.autotune
    return bool(knobs.accumulates or knobs.casts or knobs.sync_batch_norm or travels)


def no_knobs(knobs: Knobs) -> Unsupported:
    return Unsupported(
        "Ranks of another framework take each batch at once, in float32, with statistics of their "
        f"own, and the mean of whole gradients. Received: accumulate={knobs.accumulate}, "
        f"precision={knobs.precision!r}, sync_batch_norm={knobs.sync_batch_norm}, "
        f"compression={knobs.compression!r}, op={knobs.op!r}, autotune={knobs.autotune} in a job "
        "of two frameworks. Remove them."
    )


def one_device(count: int) -> Unsupported:
    return Unsupported(
        "Beside ranks of another framework each rank drives one device. Received: "
        f"devices={count}. Remove devices, and start more ranks (dream run -n)."
    )
