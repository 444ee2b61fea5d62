"""The embedded tasks as a Keras user trains them, for `dream compare`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import keras

import dream
from dream import _spec
from dream.adapters.keras import task_networks as networks
from dream.compare import tasks
from dream.compare.meter import Learned, Meter
from dream.compare.settings import Job


@contextmanager
def _kept() -> Iterator[list[Any]]:
    """What Keras's own fit is given meanwhile, so that reading it can be timed afterwards."""
    given: list[Any] = []
    original = keras.Model.fit

    @wraps(original)
    def fit(self: Any, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        given.append(x)
        return original(self, x, *args, **kwargs)

    keras.Model.fit = fit
    try:
        yield given
    finally:
        keras.Model.fit = original


def train(job: Job, meter: Meter) -> Learned:
    """Train and test, under the strategy that the command line names."""
    task = tasks.find(job.task)
    data = task.load()
    with dream.strategy(seed=job.seed) as strategy:
        model = networks.build(task, tasks.first_weights(task, job.seed))
        squares = task.loss == "squares"
        model.compile(
            networks.optimizer_of(task),
            networks.loss_of(task),
            metrics=None if squares else ["accuracy"],
        )
        with _kept() as given:
            model.fit(
                data.x, data.y, batch_size=job.batch_size, epochs=job.epochs, verbose=0,
                callbacks=[_clock(job, meter, len(data.x))],
            )  # fmt: skip
        tested = model.evaluate(
            data.x_test, data.y_test, batch_size=job.batch_size, verbose=0, return_dict=True
        )
    parameters = networks.parameters(model)
    told = float(tested["loss" if squares else "accuracy"])
    return Learned(
        parameters,
        networks.explained(told, data.y_test) if squares else told,
        strategy.topology,
        None if _spec.find(strategy.name).update == "asynchronous" else strategy.communicator,
        batches=(lambda: _batches(given[0])) if given else None,
        gradient=keras.ops.zeros(sum(value.size for value in parameters.values())),
    )


def _batches(given: Any) -> Iterable[Any]:
    on_torch = keras.backend.backend() == "torch"
    elements: Iterable[Any] = given.get_torch_dataloader() if on_torch else given.get_tf_dataset()
    return elements


def _clock(job: Job, meter: Meter, samples: int) -> Any:
    clock = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda *_, **__: meter.step(job.batch_size),
        on_epoch_end=lambda _epoch, logs: meter.epoch(
            float(logs.get("loss", "nan")),
            samples,  # a worker that was dealt none has no loss
        ),
    )
    clock.async_safe = True  # it reads no logs in mid-epoch, so Keras need not wait for them
    return clock
