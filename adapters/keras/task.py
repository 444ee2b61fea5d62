"""The embedded digits task as a Keras user writes it, for `dream compare`."""

from __future__ import annotations

from typing import Any

import keras

import dream
from dream.compare import digits as task
from dream.compare.meter import Learned, Meter
from dream.compare.settings import Job


def digits(job: Job, meter: Meter) -> Learned:
    """Train and test, under the strategy that the command line names."""
    data = task.load()
    with dream.strategy(seed=job.seed) as strategy:
        model = keras.Sequential(
            [
                keras.Input((task.LAYERS["hidden"][0],)),
                keras.layers.Dense(task.LAYERS["hidden"][1], activation="relu", name="hidden"),
                keras.layers.Dense(task.LAYERS["output"][1], name="output"),
            ]
        )
        first = task.first_weights(job.seed)
        for layer in model.layers:
            layer.set_weights([first[f"{layer.name}.kernel"], first[f"{layer.name}.bias"]])
        model.compile(
            keras.optimizers.SGD(task.LEARNING_RATE, momentum=task.MOMENTUM),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        clock = _clock(job, meter, len(data.x))
        model.fit(
            data.x, data.y, batch_size=job.batch_size, epochs=job.epochs, verbose=0,
            callbacks=[clock],
        )  # fmt: skip
        tested = model.evaluate(
            data.x_test, data.y_test, batch_size=job.batch_size, verbose=0, return_dict=True
        )
    parameters = {
        f"{layer.name}.{name}": value
        for layer in model.layers
        for name, value in zip(("kernel", "bias"), layer.get_weights(), strict=True)
    }
    return Learned(
        parameters, float(tested["accuracy"]), strategy.topology, strategy.communicator.reduction
    )


def _clock(job: Job, meter: Meter, samples: int) -> Any:
    clock = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda *_, **__: meter.step(job.batch_size),
        on_epoch_end=lambda _epoch, logs: meter.epoch(float(logs["loss"]), samples),
    )
    clock.async_safe = True  # it reads no logs in mid-epoch, so Keras need not wait for them
    return clock
