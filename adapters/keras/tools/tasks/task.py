"""The embedded tasks as a Keras user trains them, for `dream compare`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, final

import keras

import dream
from dream import _spec
from dream.adapters.keras.tools.tasks import networks
from dream.tools.compare import tasks
from dream.tools.compare.meter import Learned, Meter
from dream.tools.compare.settings import Job
from dream.tools.compare.tasks.task import Task


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
        model.compile(
            networks.optimizer_of(task),
            networks.loss_of(task),
            metrics=None if task.loss == "squares" else ["accuracy"],
        )
        with _kept() as given:
            model.fit(
                data.x, data.y, batch_size=job.batch_size, epochs=job.epochs, verbose=0,
                validation_data=(data.x_test, data.y_test), callbacks=[_Clock(job, meter, task)],
            )  # fmt: skip
        served = _spec.find(strategy.name).update == "asynchronous"
        staleness = strategy.staleness() if served else None
    parameters = networks.parameters(model)
    return Learned(
        parameters,
        strategy.topology,
        None if served else strategy.communicator,
        batches=(lambda: _batches(given[0])) if given else None,
        gradient=keras.ops.zeros(sum(value.size for value in parameters.values())),
        staleness=staleness,
    )


def _batches(given: Any) -> Iterable[Any]:
    on_torch = keras.backend.backend() == "torch"
    elements: Iterable[Any] = given.get_torch_dataloader() if on_torch else given.get_tf_dataset()
    return elements


@final
class _Clock(keras.callbacks.Callback):  # type: ignore[misc]
    """Tells the meter of a fit.

    async_safe: it reads no logs in mid-epoch, so Keras need not wait for them, and calls it in
        threads; a worker that is to be slow sleeps in line with its steps.
    """

    def __init__(self, job: Job, meter: Meter, task: Task) -> None:
        super().__init__()
        self._job, self._meter, self._task = job, meter, task
        self.async_safe = meter.slow <= 1
        self._data = task.load()
        self._testing = ExitStack()

    def on_train_batch_begin(self, *_: Any, **__: Any) -> None:
        self._meter.begin()

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self._meter.step(self._job.batch_size)

    def on_test_begin(self, *_: Any, **__: Any) -> None:
        self._testing.enter_context(self._meter.aside())

    def on_test_end(self, *_: Any, **__: Any) -> None:
        self._testing.close()

    def on_epoch_end(self, _: int, logs: Any) -> None:
        # a worker that was dealt no batch has no loss
        self._meter.epoch(float(logs.get("loss", "nan")), self._task.samples)
        if self._task.loss == "squares":
            score = networks.explained(float(logs["val_loss"]), self._data.y_test)
        else:
            score = float(logs["val_accuracy"])
        self._meter.scores.append(score)
